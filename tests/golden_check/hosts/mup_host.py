"""EleutherAI/nanoGPT-mup: GPT-2's parts with learned positions and a tied head, in muP."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.functional import gelu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.surroundings import number
from tests.golden_check.tolerances import SHIPPED

NANO_GPT = Authors(
    "EleutherAI/nanoGPT-mup",
    renames=(
        (r"^transformer\.h\.", "layers."),
        (r"^transformer\.wte\.", "embed_tokens."),
        (r"^transformer\.wpe\.", "embed_positions."),
        (r"^transformer\.ln_f\.", "layer_norm."),
        (r"\.attn\.c_attn\.(weight|bias)$", r".self_attn.in_proj_\1"),
        (r"\.attn\.c_proj\.", ".self_attn.out_proj."),
        (r"\.mlp\.c_fc\.", ".fc1."),
        (r"\.mlp\.c_proj\.", ".fc2."),
        (r"\.ln_1\.", ".self_attn_layer_norm."),
        (r"\.ln_2\.", ".final_layer_norm."),
    ),
)


class PositionedHost(Host):
    """A host with learned positions."""

    def __init__(self, golden: Golden) -> None:
        super().__init__(golden, golden.recipe)  # type: ignore[arg-type]
        self.embed_positions = nn.Embedding(*golden.need("embed_positions.weight").shape)
        self.embed_tokens.register_forward_hook(self._add_positions)

    def _add_positions(self, module: nn.Module, args: tuple[Tensor], x: Tensor) -> Tensor:
        return x + self.embed_positions.weight[: x.size(1)]


@dataclass(frozen=True)
class MuPRecipe(HostRecipe):
    """A file that has the norm on top before it is divided by m_N."""

    def adapt(self, golden: Golden) -> Golden:
        """Return ``golden`` with the divided output."""
        features = golden.activations["decoder_features"] / number(golden, "mup_width_multiplier")
        return replace(golden, activations=golden.activations | {"decoder_features": features})


def _complete_p(golden: Golden) -> str:
    depth, width = golden.setting("base_depth"), golden.setting("base_width")
    return f"complete_p(depth_mup={number(golden, 'depth_alpha_exp')},base_depth={depth},mup=true,base_width={width})"


_RECIPE = MuPRecipe(_complete_p, NANO_GPT, activation=gelu, model=PositionedHost, tolerances=SHIPPED)
RECIPES = {"completep": _RECIPE, "depthmup_half": _RECIPE}

"""Models of GPT-2's parts.

EleutherAI/nanoGPT-mup has learned positions and a tied head, in muP; epfml/DenseFormer rotary positions and no biases.
"""

from __future__ import annotations

import re
from dataclasses import replace

from torch import Tensor, nn
from torch.nn.functional import gelu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.surroundings import number
from tests.golden_check.tolerances import SHIPPED

NAMES = (
    # layers of DenseFormer are lists of one
    (r"^transformer\.h\.(\d+)\.(?:0\.)?", r"layers.\1."),
    (r"^transformer\.wte\.", "embed_tokens."),
    (r"^transformer\.wpe\.", "embed_positions."),
    (r"^transformer\.ln_f\.", "layer_norm."),
    (r"\.attn\.c_attn\.(weight|bias)$", r".self_attn.in_proj_\1"),
    (r"\.attn\.c_proj\.", ".self_attn.out_proj."),
    (r"\.mlp\.c_fc\.", ".fc1."),
    (r"\.mlp\.c_proj\.", ".fc2."),
    (r"\.ln_1\.", ".self_attn_layer_norm."),
    (r"\.ln_2\.", ".final_layer_norm."),
)


class PositionedHost(Host):
    """A host with learned positions."""

    def __init__(self, golden: Golden) -> None:
        super().__init__(golden)
        self.embed_positions = nn.Embedding(*golden.parameters["embed_positions.weight"].shape)
        self.embed_tokens.register_forward_hook(self._add_positions)

    def _add_positions(self, module: nn.Module, args: tuple[Tensor], x: Tensor) -> Tensor:
        return x + self.embed_positions.weight[: x.size(1)]


def divided_output(golden: Golden) -> Golden:
    """Divide the norm on top by m_N, which the file has before that."""
    features = golden.activations["decoder_features"] / number(golden, "mup_width_multiplier")
    return replace(golden, activations=golden.activations | {"decoder_features": features})


def _name_rows(values: Values) -> Values:
    """Return the rows of weights, there matrices of one row, by the number of layers that they follow."""
    row = re.compile(r"weights\.(\d+)\.weight")
    return {
        f"layers.wiring.weights.{int(found[1]) + 1}" if found else name: value[0] if found else value
        for name, value, found in ((name, value, row.fullmatch(name)) for name, value in values.items())
    }


_MU_P = HostRecipe(
    "complete_p(depth_mup={depth_alpha_exp},base_depth={base_depth},mup=true,base_width={base_width})",
    Authors("EleutherAI/nanoGPT-mup", renames=NAMES),
    activation=gelu,
    model=PositionedHost,
    adapt=divided_output,
    tolerances=SHIPPED,
)
_DENSE_FORMER = HostRecipe(
    "dense_former(dilation={dilation},period={period})",
    Authors("epfml/DenseFormer", _name_rows, NAMES),
    activation=gelu,
    rotary="interleaved",
    fixed={r".*_norm\.bias": 0.0},
)
RECIPES = {
    "completep": _MU_P,
    "depthmup_half": _MU_P,
    "denseformer": _DENSE_FORMER,
    "denseformer_dil2": _DENSE_FORMER,
}

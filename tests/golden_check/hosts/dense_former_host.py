"""DenseFormer's own model: GPT-2's parts with rotary positions, GELU, and no biases (epfml/DenseFormer)."""

from __future__ import annotations

import re

from torch.nn.functional import gelu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host_recipe import HostRecipe


def _name_rows(values: Values) -> Values:
    """Return the rows of weights, there matrices of one row, by the number of layers that they follow."""
    row = re.compile(r"weights\.(\d+)\.weight")
    return {
        f"layers.wiring.weights.{int(found[1]) + 1}" if found else name: value[0] if found else value
        for name, value, found in ((name, value, row.fullmatch(name)) for name, value in values.items())
    }


DENSE_FORMER = Authors(
    "epfml/DenseFormer",
    _name_rows,
    (
        (r"^transformer\.h\.(\d+)\.0\.", r"layers.\1."),
        (r"^transformer\.wte\.", "embed_tokens."),
        (r"^transformer\.ln_f\.", "layer_norm."),
        (r"\.attn\.c_attn\.weight$", ".self_attn.in_proj_weight"),
        (r"\.attn\.c_proj\.", ".self_attn.out_proj."),
        (r"\.mlp\.c_fc\.", ".fc1."),
        (r"\.mlp\.c_proj\.", ".fc2."),
        (r"\.ln_1\.", ".self_attn_layer_norm."),
        (r"\.ln_2\.", ".final_layer_norm."),
    ),
)


def _wiring(golden: Golden) -> str:
    return f"dense_former(dilation={golden.setting('dilation')},period={golden.setting('period')})"


_RECIPE = HostRecipe(_wiring, DENSE_FORMER, activation=gelu, rotary="interleaved", fixed={r".*_norm\.bias": 0.0})
RECIPES = {"denseformer": _RECIPE, "denseformer_dil2": _RECIPE}

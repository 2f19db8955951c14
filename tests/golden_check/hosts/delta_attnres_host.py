"""Delta Attention Residuals' own model: Qwen3's parts (wdlctc/delta-attention-residuals-code)."""

from __future__ import annotations

from functools import partial

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.llama_host import LLAMA, llama
from tests.golden_check.tolerances import SHIPPED


def _query_vectors(values: Values) -> Values:
    """Turn queries, there matrices of one row, into vectors."""
    values = LLAMA.convert(values)
    return {name: value[0] if name.endswith("_res_proj.weight") else value for name, value in values.items()}


QWEN = Authors(
    "wdlctc/delta-attention-residuals-code",
    _query_vectors,
    (
        (r"\.attn_res_", ".self_attn_connection.over_depth."),
        (r"\.mlp_res_", ".ffn_connection.over_depth."),
        (r"\.over_depth\.proj\.weight$", ".over_depth.query"),
        (r"\.over_depth\.norm\.weight$", ".over_depth.key_gain"),
        *LLAMA.renames,
    ),
)
_recipe = partial(
    llama,
    authors=QWEN,
    query_key_norm="per_head",
    tolerances=SHIPPED,
    # the first sub-layer reads the stream alone
    unused=r"model\.layers\.0\.attn_res_",
    # random there; the paper says zero
    initial_values=False,
)


def _in_blocks(golden: Golden) -> str:
    return f"delta_attnres(norm=rms,as_coded=true,block={golden.setting('layers_per_block')})"


RECIPES = {"delta_attnres": _recipe("delta_attnres(norm=rms)"), "delta_attnres_block": _recipe(_in_blocks)}

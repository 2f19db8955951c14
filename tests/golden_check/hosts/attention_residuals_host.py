"""Attention Residuals: third-party code of its softmax (fla-org/flash-linear-attention) among plain parts."""

from __future__ import annotations

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Values
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.plain_host import plain


def _query_vectors(values: Values) -> Values:
    """Return the queries as vectors, there matrices of one row."""
    return {name: value[0] if name.endswith("_res.proj.weight") else value for name, value in values.items()}


def _wiring(golden: Golden) -> str:
    return f"attention_residuals(block={golden.setting('block_size_sublayers')})"


_RECIPE = plain(
    _wiring,
    "fla-org/flash-linear-attention",
    (r"\.attn_res\.", ".self_attn_connection.over_depth."),
    (r"\.mlp_res\.", ".ffn_connection.over_depth."),
    (r"^out_res\.", "layers.wiring.over_depth."),
    (r"\.over_depth\.proj\.weight$", ".over_depth.query"),
    (r"\.over_depth\.norm\.weight$", ".over_depth.key_gain"),
    convert=_query_vectors,
    # the first sub-layer's softmax is over one source
    unused=r"layers\.0\.attn_res\.",
    eps=1e-5,
)
RECIPES = {"attnres_full": _RECIPE, "attnres_block": _RECIPE}

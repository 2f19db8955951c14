"""Models of plain parts: attention with biases and no positions, a ReLU between the matrices of the FFN, LayerNorm.

Where authors published a wiring and no model, these stand around it; so they do around layers of Hugging Face's
transformers (HyperCLOVA X, Beam, ZAYA1) and around the softmax of Attention Residuals, third-party code.
"""

from __future__ import annotations

import re
from typing import Any

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.tolerances import SHIPPED

NAMES = (
    (r"^emb\.", "embed_tokens."),
    (r"^head\.", "output_projection."),
    (r"^norm\.", "layer_norm."),
    (r"\.attn\.([qkv])\.", r".self_attn.\1_proj."),
    (r"\.attn\.o\.", ".self_attn.out_proj."),
    (r"\.(?:ffn|mlp)\.fc", ".fc"),
    (r"\.n(?:orm)?1\.", ".self_attn_layer_norm."),
    (r"\.n(?:orm)?2\.", ".final_layer_norm."),
)


def plain(wiring: Any, repository: str, *names: tuple[str, str], **more: Any) -> HostRecipe:
    """Return a recipe for a model of plain parts.

    Args:
        wiring: as :attr:`HostRecipe.wiring`.
        repository: whose wiring it is.
        names: regular expressions and replacements for what only this design has; applied first.
        more: further fields of the recipe; ``convert`` is that of its authors.
    """
    return HostRecipe(wiring, Authors(repository, more.pop("convert", dict), (*names, *NAMES)), **more)


def query_vectors(values: Values) -> Values:
    """Return queries over depth and gates as vectors, there matrices of one row."""
    row = re.compile(r"(_res[._]proj|\.ddl_\w+\.\w+)\.weight$")
    return {name: x[0] if row.search(name) else x for name, x in values.items()}


_ATTENTION_RESIDUALS = plain(
    "attention_residuals(block={block_size_sublayers})",
    "fla-org/flash-linear-attention",
    (r"\.attn_res\.", ".self_attn_connection.over_depth."),
    (r"\.mlp_res\.", ".ffn_connection.over_depth."),
    (r"^out_res\.", "layers.wiring.over_depth."),
    (r"\.over_depth\.proj\.weight$", ".over_depth.query"),
    (r"\.over_depth\.norm\.weight$", ".over_depth.key_gain"),
    convert=query_vectors,
    # the first sub-layer's softmax is over one source
    unused=r"layers\.0\.attn_res\.",
    eps=1e-5,
)


TRANSFORMERS = "huggingface/transformers"
ATTENTION = (
    (r"\.self_attn\.([qkv])\.", r".self_attn.\1_proj."),
    (r"\.self_attn\.o\.", ".self_attn.out_proj."),
    (r"\.input_layernorm\.", ".self_attn_layer_norm."),
)


RECIPES = {
    "deep_delta": plain(
        "deep_delta(norm=rms,eps=?)",
        "yifanzhang-pro/deep-delta-learning",
        (r"\.ddl_attn\.", ".self_attn_connection."),
        (r"\.ddl_mlp\.", ".ffn_connection."),
        (r"\.beta\.weight$", ".gate"),
        (r"\.beta\.bias$", ".gate_bias"),
        (r"\.v_proj\.weight$", ".value"),
        (r"\.v_proj\.bias$", ".value_bias"),
        convert=query_vectors,
        tolerances=SHIPPED,
    ),
    "derf_preln": plain("pre_ln(norm=derf)", "zlab-princeton/Derf", tolerances=SHIPPED),
    "dyt_preln": plain("pre_ln(norm=dyt)", "jiachenzhu/DyT"),
    # the gains of the class start there unless a model says otherwise
    "layerscale": plain(
        "layer_scale(gain=1e-4)",
        "facebookresearch/deit",
        (r"\.gamma_1$", ".self_attn_connection.gain"),
        (r"\.gamma_2$", ".ffn_connection.gain"),
    ),
    "attnres_full": _ATTENTION_RESIDUALS,
    "attnres_block": _ATTENTION_RESIDUALS,
    "hyperclovax_peri_multiplier": plain(
        "peri_ln(norm=rms,embed_norm=false,multiplier={residual_multiplier})",
        TRANSFORMERS,
        *ATTENTION,
        (r"\.post_norm1\.", ".self_attn_out_layer_norm."),
        (r"\.post_attention_layernorm\.", ".final_layer_norm."),
        (r"\.post_norm2\.", ".final_out_layer_norm."),
        tolerances=SHIPPED,
    ),
    "beam_depth_scaled_sandwich": plain(
        "beam_residual(norm=rms)",
        TRANSFORMERS,
        *ATTENTION,
        (r"\.post_attention_layernorm\.", ".self_attn_out_layer_norm."),
        (r"\.pre_feedforward_layernorm\.", ".final_layer_norm."),
        (r"\.post_feedforward_layernorm\.", ".final_out_layer_norm."),
        tolerances=SHIPPED,
    ),
    "zaya_residual_scaling": plain(
        "zaya_residual(norm=rms)",
        TRANSFORMERS,
        *ATTENTION,
        (r"\.post_attention_layernorm\.", ".final_layer_norm."),
        (r"^input_hidden_states_", "layers.wiring.of_embedding."),
        (r"\.post_attention_residual_scale\.", ".self_attn_connection."),
        (r"\.post_mlp_residual_scale\.", ".ffn_connection."),
        (r"\.hidden_states_(scale|bias)$", r".of_branch.\1"),
        (r"\.residual_(scale|bias)$", r".of_stream.\1"),
        tolerances=SHIPPED,
    ),
}

"""Layers of released models in Hugging Face's transformers with plain parts in them: HyperCLOVA X, Beam, ZAYA1."""

from __future__ import annotations

from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.parallel_host import REPOSITORY
from tests.golden_check.hosts.plain_host import plain
from tests.golden_check.hosts.surroundings import number
from tests.golden_check.tolerances import SHIPPED

ATTENTION = ((r"\.self_attn\.([qkv])\.", r".self_attn.\1_proj."), (r"\.self_attn\.o\.", ".self_attn.out_proj."))


def _peri_ln(golden: Golden) -> str:
    return f"peri_ln(norm=rms,embed_norm=false,multiplier={number(golden, 'residual_multiplier')})"


RECIPES = {
    "hyperclovax_peri_multiplier": plain(
        _peri_ln,
        REPOSITORY,
        *ATTENTION,
        (r"\.input_layernorm\.", ".self_attn_layer_norm."),
        (r"\.post_norm1\.", ".self_attn_out_layer_norm."),
        (r"\.post_attention_layernorm\.", ".final_layer_norm."),
        (r"\.post_norm2\.", ".final_out_layer_norm."),
        tolerances=SHIPPED,
    ),
    "beam_depth_scaled_sandwich": plain(
        "beam_residual(norm=rms)",
        REPOSITORY,
        *ATTENTION,
        (r"\.input_layernorm\.", ".self_attn_layer_norm."),
        (r"\.post_attention_layernorm\.", ".self_attn_out_layer_norm."),
        (r"\.pre_feedforward_layernorm\.", ".final_layer_norm."),
        (r"\.post_feedforward_layernorm\.", ".final_out_layer_norm."),
        tolerances=SHIPPED,
    ),
    "zaya_residual_scaling": plain(
        "zaya_residual(norm=rms)",
        REPOSITORY,
        *ATTENTION,
        (r"\.input_layernorm\.", ".self_attn_layer_norm."),
        (r"\.post_attention_layernorm\.", ".final_layer_norm."),
        (r"^input_hidden_states_", "layers.wiring.of_embedding."),
        (r"\.post_attention_residual_scale\.", ".self_attn_connection."),
        (r"\.post_mlp_residual_scale\.", ".ffn_connection."),
        (r"\.hidden_states_(scale|bias)$", r".of_branch.\1"),
        (r"\.residual_(scale|bias)$", r".of_stream.\1"),
        tolerances=SHIPPED,
    ),
}

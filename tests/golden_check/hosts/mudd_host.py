"""MUDDFormer's own model: LLaMA's parts with norms of each head's queries and keys (Caiyun-AI/MUDDFormer)."""

from __future__ import annotations

import torch

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from fairseq_residuals.wirings.blocks.feed_forward import ACTIVATIONS
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.surroundings import rotary
from tests.golden_check.tolerances import SHIPPED

MUDDFORMER = Authors(
    "Caiyun-AI/MUDDFormer",
    renames=(
        (r"^tok_embeddings\.", "embed_tokens."),
        (r"^output\.", "output_projection."),
        (r"^norm\.", "layer_norm."),
        (r"^dense_bs\.(\d+)$", r"layers.wiring.bias.\1"),
        (r"^dynamic_dense\.(\d+)\.w([12])\.weight$", r"layers.wiring.w\2.\1"),
        (r"\.attention\.w([qkv])\.", r".self_attn.\1_proj."),
        (r"\.attention\.wo\.", ".self_attn.out_proj."),
        (r"\.attention\.([qk])_norm\.", r".self_attn.\1_norm."),
        (r"\.attention_norm\.", ".self_attn_layer_norm."),
        (r"\.attention_norms\.0\.", ".self_attn_layer_norm."),
        (r"\.attention_norms\.1\.", ".self_attn_connection.k_norm."),
        (r"\.attention_norms\.2\.", ".self_attn_connection.v_norm."),
        (r"\.ffn_norm\.", ".final_layer_norm."),
        (r"\.feed_forward\.w1\.", ".fc1.gate."),
        (r"\.feed_forward\.w3\.", ".fc1.up."),
        (r"\.feed_forward\.w2\.", ".fc2."),
    ),
)


def _wiring(golden: Golden) -> str:
    """Tell by the hidden layer below the last mix whether it is wider."""
    hidden, sources = golden.parameters[f"layers.wiring.w1.{golden.depth('layers') - 1}"], golden.depth("layers") + 1
    return f"mudd(norm=rms,expand_last={str(len(hidden) > sources).lower()})"


RECIPES = {
    "muddformer": HostRecipe(
        _wiring,
        MUDDFORMER,
        activation=ACTIVATIONS["swiglu"],
        query_key_norm="per_head",
        surroundings=(rotary("half", rounded=torch.bfloat16),),
        tolerances=SHIPPED,
        # its class is made for inference, and draws what training starts at 0 and 1
        initial_values=False,
    )
}

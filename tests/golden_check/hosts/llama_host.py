"""Models of LLaMA's parts: rotary positions, SwiGLU, RMSNorm, no biases.

lmsdss/LayerNorm-Scaling and pixeli99/MixLN (``peft_pretraining/modeling_llama.py``) and Hugging Face's OLMo-2.
"""

from __future__ import annotations

import re
from functools import partial

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.blocks.feed_forward import ACTIVATIONS
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host_recipe import HostRecipe

PRE_NORMS = {"input_layernorm": "self_attn_layer_norm", "post_attention_layernorm": "final_layer_norm"}
POST_NORMS = {"post_attention_layernorm": "self_attn_layer_norm", "post_feedforward_layernorm": "final_layer_norm"}
SANDWICH_NORMS = {
    "input_layernorm": "self_attn_layer_norm",
    "post_attention_layernorm": "self_attn_out_layer_norm",
    "pre_feedforward_layernorm": "final_layer_norm",
    "post_feedforward_layernorm": "final_out_layer_norm",
}
_NORM = re.compile(r"layers\.(\d+)\.(\w+_layernorm)\.(\w+)")


def _name_norms(values: Values) -> Values:
    """Name the norms: there the same name stands for different ones, depending on which others the layer has."""
    values = {name.removeprefix("model."): value for name, value in values.items()}
    norms: dict[str, set[str]] = {}
    for m in filter(None, map(_NORM.fullmatch, values)):
        norms.setdefault(m[1], set()).add(m[2])

    def rename(m: re.Match[str]) -> str:
        names = next((n for n in (PRE_NORMS, POST_NORMS, SANDWICH_NORMS) if n.keys() == norms[m[1]]), {})
        return f"layers.{m[1]}.{names.get(m[2], m[2])}.{m[3]}"

    return {_NORM.sub(rename, name): value for name, value in values.items()}


LLAMA = Authors(
    "huggingface/transformers",
    _name_norms,
    (
        (r"^lm_head\.", "output_projection."),
        (r"^norm\.", "layer_norm."),
        (r"\.o_proj\.", ".out_proj."),
        (r"\.mlp\.gate_proj\.", ".fc1.gate."),
        (r"\.mlp\.up_proj\.", ".fc1.up."),
        (r"\.mlp\.down_proj\.", ".fc2."),
    ),
)


llama = partial(HostRecipe, authors=LLAMA, activation=ACTIVATIONS["swiglu"], rotary="half")


ALL_HEADS = Authors(LLAMA.repository, LLAMA.convert, ((r"\.([qk])_norm\.", r".\1_proj.norm."), *LLAMA.renames))


def _mix_ln(golden: Golden) -> str:
    return f"mix_ln(norm=rms,alpha={golden.setting('env', 'POST_NUM') / golden.depth('layers')})"


RECIPES = {
    "preln_rms": llama("pre_ln(norm=rms)"),
    # its norm on top is no part of Post-LN
    "postln_rms": llama(
        "post_ln(norm=rms)",
        top_norm=True,
        authors=Authors(LLAMA.repository, LLAMA.convert, ((r"^norm\.", "top_norm."), *LLAMA.renames)),
    ),
    "lns": llama("layernorm_scaling(norm=rms)"),
    "sandwich": llama("sandwich_ln(norm=rms)"),
    "mixln": llama(_mix_ln),
    "olmo2_postsub": llama("post_sublayer_norm(norm=rms)", query_key_norm="all_heads", authors=ALL_HEADS),
}

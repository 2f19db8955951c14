"""Models of LLaMA's parts: rotary positions, SwiGLU, RMSNorm, no biases.

lmsdss/LayerNorm-Scaling and pixeli99/MixLN (``peft_pretraining/modeling_llama.py``), Hugging Face's OLMo-2, both models
of Zcchill/Value-Residual-Learning, dandingsky/GPAS, and wdlctc/delta-attention-residuals-code with the parts of Qwen3.
"""

from __future__ import annotations

import re
from functools import partial

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.blocks.feed_forward import ACTIVATIONS
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.plain_host import query_vectors
from tests.golden_check.tolerances import SHIPPED

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


GPAS = Authors("dandingsky/GPAS", LLAMA.convert, (*LLAMA.renames, (r"\.gpas_block\.", ".gpas.")))
gated = partial(llama, authors=GPAS, tolerances=SHIPPED)


def _mix_ln(more: str, golden: Golden) -> str:
    return f"mix_ln(norm=rms,{more}alpha={golden.setting('env', 'POST_NUM') / golden.depth('layers')})"


def _norm_on_top(authors: Authors) -> Authors:
    """Name the norm on top, which is no part of Post-LN or DeepNorm."""
    return Authors(authors.repository, authors.convert, ((r"^norm\.", "top_norm."), *authors.renames))


QWEN = Authors(
    "wdlctc/delta-attention-residuals-code",
    lambda values: query_vectors(LLAMA.convert(values)),
    (
        (r"\.attn_res_", ".self_attn_connection.over_depth."),
        (r"\.mlp_res_", ".ffn_connection.over_depth."),
        (r"\.over_depth\.proj\.weight$", ".over_depth.query"),
        (r"\.over_depth\.norm\.weight$", ".over_depth.key_gain"),
        *LLAMA.renames,
    ),
)
_delta = partial(
    llama,
    authors=QWEN,
    query_key_norm="per_head",
    tolerances=SHIPPED,
    # the first sub-layer reads the stream alone
    unused=r"model\.layers\.0\.attn_res_",
    # random there; the paper says zero
    initial_values=False,
)


RECIPES = {
    "preln_rms": llama("pre_ln(norm=rms)"),
    "postln_rms": llama("post_ln(norm=rms)", top_norm=True, authors=_norm_on_top(LLAMA)),
    "lns": llama("layernorm_scaling(norm=rms)"),
    "sandwich": llama("sandwich_ln(norm=rms)"),
    "mixln": llama(partial(_mix_ln, "")),
    "olmo2_postsub": llama("post_sublayer_norm(norm=rms)", query_key_norm="all_heads", authors=ALL_HEADS),
    "resformer": llama("pre_ln(norm=rms,value_residual=identity)"),
    # its layers above the first have no values of their own: zeros, with a weight of 0
    "svformer": llama(
        "pre_ln(norm=rms,value_residual=learnable)",
        fixed={
            r"layers\.[1-9]\d*\.self_attn\.v_proj\.weight": 0.0,
            r"layers\.\d+\.value_residual\.first_weight": 1.0,
            r"layers\.\d+\.value_residual\.own_weight": 0.0,
        },
    ),
    "gpas_preln": gated("pre_ln(norm=rms,gpas=layer)"),
    "gpas_sandwich": gated("sandwich_ln(norm=rms,gpas=layer)"),
    "gpas_deepnorm": gated("deepnet(norm=rms,gpas=layer)", authors=_norm_on_top(GPAS), top_norm=True),
    "gpas_mixln": gated(partial(_mix_ln, "gpas=layer,")),
    "delta_attnres": _delta("delta_attnres(norm=rms)"),
    "delta_attnres_block": _delta("delta_attnres(norm=rms,as_coded=true,block={layers_per_block})"),
}

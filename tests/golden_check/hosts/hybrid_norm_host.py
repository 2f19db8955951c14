"""The models of BryceZhuo/HybridNorm, which are OLMo's but for the norms: rotary positions, SwiGLU, no biases."""

from __future__ import annotations

from functools import partial

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.blocks.feed_forward import ACTIVATIONS
from tests.golden_check.hosts.host_recipe import HostRecipe


def _part_gated_ffn(values: Values) -> Values:
    """Part OLMo's one matrix, whose second half is the gate."""
    parted: Values = {}
    for name, value in values.items():
        if name.endswith(".ff_proj.weight"):
            fc1 = name.removesuffix(".ff_proj.weight") + ".fc1"
            parted[f"{fc1}.up.weight"], parted[f"{fc1}.gate.weight"] = value.chunk(2)
        else:
            parted[name] = value
    return parted


OLMO = Authors(
    "BryceZhuo/HybridNorm",
    _part_gated_ffn,
    (
        (r"^transformer\.wte\.", "embed_tokens."),
        (r"^transformer\.ff_out\.", "output_projection."),
        (r"^transformer\.ln_f\.", "layer_norm."),
        (r"^transformer\.blocks\.", "layers."),
        (r"\.att_proj\.weight$", ".self_attn.in_proj_weight"),
        (r"\.attn_out\.", ".self_attn.out_proj."),
        (r"\.ff_out\.", ".fc2."),
        (r"\.attn_norm\.", ".self_attn_layer_norm."),
        (r"\.ff_norm\.", ".final_layer_norm."),
        (r"\.([qkv])_norm\.", r".self_attn_connection.\1_norm."),
    ),
)
olmo = partial(
    HostRecipe,
    authors=OLMO,
    activation=ACTIVATIONS["swiglu"],
    rotary="half",
    eps=1e-5,
)
RECIPES = {
    "hybridnorm": olmo("hybrid_norm(norm=rms)"),
    "hybridnorm_star": olmo("hybrid_norm(norm=rms,first_layer=star)"),
}

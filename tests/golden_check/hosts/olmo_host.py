"""The models of BryceZhuo/HybridNorm, which are OLMo's but for the norms: rotary positions, SwiGLU, no biases.

And those of Qwen-Applications/SiameseNorm: DeiT's encoder, and OLMo's decoder, where HybridNorm is the Post-LN stream.
And NVIDIA/ngpt's blocks, which are given vectors of norm 1 and give such; without rotary positions, above which the
authors multiply queries and keys by gains, and with gains of 1 inside the FFN.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch.nn.functional import gelu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.blocks.feed_forward import ACTIVATIONS
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host_recipe import HostRecipe


def part_gated_ffn(values: Values, matrix: str = ".ff_proj.weight") -> Values:
    """Part an FFN's first matrix, by the end of its name, whose second half is the gate."""
    parted: Values = {}
    for name, value in values.items():
        if name.endswith(matrix):
            fc1 = name.removesuffix(matrix) + ".fc1"
            parted[f"{fc1}.up.weight"], parted[f"{fc1}.gate.weight"] = value.chunk(2)
        else:
            parted[name] = value
    return parted


OLMO = Authors(
    "BryceZhuo/HybridNorm",
    part_gated_ffn,
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
olmo = partial(HostRecipe, authors=OLMO, activation=ACTIVATIONS["swiglu"], rotary="half", eps=1e-5)
SIAMESE_NORM = "Qwen-Applications/SiameseNorm"
DEIT = Authors(
    SIAMESE_NORM,
    renames=(
        # on top their names are swapped: pre_norm is that of x
        (r"^pre_norm\.", "layers.wiring.post_norm."),
        (r"^post_norm\.", "layers.wiring.pre_norm."),
        (r"^final_norm\.", "layer_norm."),
        (r"^blocks\.", "layers."),
        (r"\.attn\.qkv\.(weight|bias)$", r".self_attn.in_proj_\1"),
        (r"\.attn\.proj\.", ".self_attn.out_proj."),
        (r"\.mlp\.fc", ".fc"),
        (r"\.input_norm1\.", ".self_attn_layer_norm."),
        (r"\.input_norm2\.", ".final_layer_norm."),
        (r"\.(pre|post)_norm1\.", r".self_attn_connection.\1_norm."),
        (r"\.(pre|post)_norm2\.", r".ffn_connection.\1_norm."),
    ),
)
LANGUAGE_MODEL = Authors(
    SIAMESE_NORM,
    OLMO.convert,
    (
        (r"^transformer\.ln_f\.", "layers.wiring.post_norm."),
        (r"^transformer\.ln_y_f\.", "layers.wiring.pre_norm."),
        (r"^transformer\.ln_final_f\.", "layer_norm."),
        (r"\.c1$", ".self_attn_connection.gain"),
        (r"\.attn_y_norm\.", ".self_attn_connection.pre_norm."),
        (r"\.ff_norm\.", ".ffn_connection.post_norm."),
        (r"\.ff_y_norm\.", ".ffn_connection.pre_norm."),
        (r"\.ff_input_norm\.", ".final_layer_norm."),
        *OLMO.renames,
    ),
)


def by_root_mean_square(golden: Golden) -> Golden:
    """Make vectors of norm 1 those of root mean square 1, their loss what it was, and gains a row for each head."""
    root = golden.parameters["layers.0.self_attn.out_proj.weight"].size(1) ** 0.5

    def by_heads(values: Values) -> Values:
        return {name: x.unflatten(0, (golden.heads, -1)) if "query_gain" in name else x for name, x in values.items()}

    return replace(
        golden,
        **{part: by_heads(getattr(golden, part)) for part in ("parameters", "gradients", "scales", "initial")},
        activations={name: root * x for name, x in golden.activations.items()},
        inputs=golden.inputs | {"loss_weight": golden.inputs["loss_weight"] / root},
    )


NGPT = Authors(
    "NVIDIA/ngpt",
    partial(part_gated_ffn, matrix=".c_fc.weight"),
    (
        (r"^transformer\.h\.", "layers."),
        (r"\.([qkv])(?:uery|ey|alue)\.", r".self_attn.\1_proj."),
        (r"\.att_c_proj\.", ".self_attn.out_proj."),
        (r"\.mlp_c_proj\.", ".fc2."),
        (r"\.attn_alpha$", ".self_attn_connection.rate"),
        (r"\.mlp_alpha$", ".ffn_connection.rate"),
        (r"\.sqk$", ".self_attn_connection.query_gain"),
    ),
)


RECIPES = {
    "ngpt": HostRecipe("ngpt", NGPT, ACTIVATIONS["swiglu"], unused=r".*\.suv", adapt=by_root_mean_square),
    "hybridnorm": olmo("hybrid_norm(norm=rms)"),
    "hybridnorm_star": olmo("hybrid_norm(norm=rms,first_layer=star)"),
    "siamesenorm_deit": HostRecipe("siamese_norm", DEIT, activation=gelu, causal=False, eps=1e-6),
    "siamesenorm_hybrid_pre": olmo(
        "siamese_norm(norm=rms,post_stream=hybrid_norm)",
        authors=LANGUAGE_MODEL,
    ),
}

"""SiameseNorm in the authors' models (Qwen-Applications/SiameseNorm).

They are DeiT's encoder, and OLMo's decoder, where HybridNorm is the Post-LN stream.
"""

from __future__ import annotations

from torch.nn.functional import gelu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.hybrid_norm_host import OLMO, olmo

REPOSITORY = "Qwen-Applications/SiameseNorm"
DEIT = Authors(
    REPOSITORY,
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
    REPOSITORY,
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


RECIPES = {
    "siamesenorm_deit": HostRecipe("siamese_norm", DEIT, activation=gelu, causal=False, eps=1e-6),
    "siamesenorm_hybrid_pre": olmo(
        "siamese_norm(norm=rms,post_stream=hybrid_norm)",
        authors=LANGUAGE_MODEL,
    ),
}

"""The two models of Zcchill/Value-Residual-Learning, which are LLaMA's but for the values."""

from tests.golden_check.hosts.llama_host import llama

RECIPES = {
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
}

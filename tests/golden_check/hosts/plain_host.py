"""Models of plain parts: attention with biases and no positions, a ReLU between the matrices of the FFN, LayerNorm.

Where authors published a wiring and no model, these stand around it.
"""

from __future__ import annotations

from typing import Any

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
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


RECIPES = {
    "derf_preln": plain("pre_ln(norm=derf)", "zlab-princeton/Derf", tolerances=SHIPPED),
    "dyt_preln": plain("pre_ln(norm=dyt)", "jiachenzhu/DyT"),
    # the gains of the class start there unless a model says otherwise
    "layerscale": plain(
        "layer_scale(gain=1e-4)",
        "facebookresearch/deit",
        (r"\.gamma_1$", ".self_attn_connection.gain"),
        (r"\.gamma_2$", ".ffn_connection.gain"),
    ),
}

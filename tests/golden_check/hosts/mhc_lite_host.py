"""FFTYYY/mhc-lite's own models: nanoGPT with learned positions, GELU, biases, and a head tied to the embedding."""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch.nn.functional import gelu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.core.layer import CONNECTIONS
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.gpt2_host import NAMES, PositionedHost
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.hyper_connections_host import streams_side_by_side
from tests.golden_check.tolerances import SHIPPED


def join_router(values: Values) -> Values:
    """Join the parameters of what is read, written and mixed as the rows of one matrix."""
    joined = dict(values)
    for name in values:
        if found := re.fullmatch(r"(.*)\.static_alpha", name):
            router = found[1]
            taken = {part: joined.pop(f"{router}.{part}") for part in _PARTS}
            alpha, matrix = taken["static_alpha"], taken["dynamic_alpha_fn"].T
            n = len(taken["static_beta"])
            if alpha.dim() == 2:
                # row i has what is read of stream i first, then what is mixed of it
                matrix = matrix.unflatten(0, alpha.shape)
                alpha, matrix = (torch.cat([x[:, 0], x[:, 1:].flatten(0, 1)]) for x in (alpha, matrix))
            for part, reads, writes in (
                ("bias", alpha, taken["static_beta"]),
                ("weight", matrix, taken["dynamic_beta_fn"].T),
            ):
                joined[f"{router}.logits.{part}"] = torch.cat([reads[:n], writes, reads[n:]])
            scales = ("pre_branch_scale", "h_post_scale", "residual_scale")
            joined[f"{router}.scale"] = torch.cat([taken[scale].flatten() for scale in scales])
    return joined


_PARTS = (
    *("static_alpha", "dynamic_alpha_fn", "static_beta", "dynamic_beta_fn"),
    *("pre_branch_scale", "h_post_scale", "residual_scale"),
)
MHC_LITE = Authors(
    "FFTYYY/mhc-lite",
    join_router,
    (
        (r"\.norm\.gamma$", ".logits.gamma"),
        (r"\.hc_attn\.", f".{CONNECTIONS['self']}.router."),
        (r"\.hc_mlp\.", f".{CONNECTIONS['ffn']}.router."),
        (r"\.branch_attn\.0\.", ".ln_1."),
        (r"\.branch_mlp\.0\.", ".ln_2."),
        (r"\.branch_(attn|mlp)\.1\.", r".\1."),
        *NAMES,
    ),
)


def measured_where_they_cancel(golden: Golden) -> Golden:
    """Measure gradients of routers that cancel by what they are as large as where they do not.

    The streams are still alike in the first router, so the gradient of what mixes them is zero but for rounding:
    the largest of each joined tensor. Of the scales, sums over all positions: the largest in any layer.
    """
    first = f"layers.0.{CONNECTIONS['self']}.router."
    measures = {name: x.max().expand_as(x) for name, x in golden.scales.items() if name.startswith(first)}
    names = [name for name in golden.scales if name.endswith(".router.scale")]
    if names:
        measures |= dict.fromkeys(names, torch.stack([golden.scales[name] for name in names]).amax(0))
    return replace(golden, scales=golden.scales | measures)


def _recipe(options: str) -> HostRecipe:
    return HostRecipe(
        f"mhc_lite(n={{streams}}{options})",
        MHC_LITE,
        activation=gelu,
        model=PositionedHost,
        adapt=measured_where_they_cancel,
        layer_outputs=streams_side_by_side,
        tolerances=SHIPPED,
        # which of the streams a sub-layer starts with is drawn there
        initial_values=False,
    )


RECIPES = {"mhc_lite": _recipe(""), "mhc_by_mhclite_authors": _recipe(",mixing=sinkhorn")}

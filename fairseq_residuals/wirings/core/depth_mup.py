"""Depth-muP: the options ``depth_mup`` and ``base_depth``, common to all variants that add branches to a stream.

A rate that is best for a model of few layers is then best for one of many. With m = L / L_base, L the stack's layers,
and an exponent alpha (``depth_mup=true``: 1, CompleteP; a number: that, 0.5 of depth-muP):

=========================================  ==================
what is multiplied                         by
=========================================  ==================
every branch, before it meets the stream   m^-alpha
Adam's rate of the layers' parameters      m^(alpha - 1)
Adam's eps of the layers' parameters       m^-alpha
=========================================  ==================

Dey et al. 2025, "Don't be lazy: CompleteP enables compute-efficient deep transformers", Table 1; alpha = 1/2: Yang et
al. 2023, "Feature Learning in Infinite-Depth Neural Networks". Checked against EleutherAI/nanoGPT-mup@6f8bc3b
(``model.py``). Weights start as at the base depth, so rules that make them smaller with depth are refused.

Paper and code: the paper multiplies eps in the residual blocks, the code everywhere; this follows the paper. Our
choices: encoder and decoder have an m each, from their own layers, with one L_base. The theory asks that the sum of a
stack's branches stays bounded, and a decoder's three branches per layer are as many at the base depth. The theory is
that of Pre-LN; where a norm follows the sum, as in Post-LN, nobody has tried, and the option is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

if TYPE_CHECKING:
    from fairseq_residuals.wirings.core.base import StackShape, Variant


class UpdateScale(NamedTuple):
    """What a parameter's settings in the optimizer are multiplied by."""

    rate: float = 1.0
    decay: float = 1.0
    eps: float = 1.0

    def times(self, other: UpdateScale) -> UpdateScale:
        """Return both together."""
        return UpdateScale(*(a * b for a, b in zip(self, other, strict=True)))


SPARED = UpdateScale(decay=0.0)
"""Of parameters without weight decay."""


def depth_ratio(config: Any, shape: StackShape) -> float:
    """Return m of a stack."""
    return float(shape.depth / config.base_depth)


def branch_multiplier(config: Any, shape: StackShape) -> float:
    """Return what every branch of a stack is multiplied by; 1 where the option is off."""
    return depth_ratio(config, shape) ** -float(config.depth_mup) if config.depth_mup else 1.0


def layer_scale(config: Any, shape: StackShape) -> UpdateScale:
    """Return the scale of the updates of a stack's layers; the identity where the option is off."""
    if not config.depth_mup:
        return UpdateScale()
    m, alpha = depth_ratio(config, shape), float(config.depth_mup)
    return UpdateScale(rate=m ** (alpha - 1), eps=m**-alpha)


def update_scales(variant: Variant, layers: nn.ModuleList) -> dict[nn.Parameter, UpdateScale]:
    """Return the scales of the updates of ``layers``, and of what ``variant`` has rules for."""
    scales = dict.fromkeys(layers.parameters(), layer_scale(variant.config, variant.shape))
    for ending, scale in variant.update_rules().items():
        for name, parameter in (*layers.named_parameters(), *variant.named_parameters()):
            if f".{name}".endswith(f".{ending}"):
                scales[parameter] = scales.get(parameter, UpdateScale()).times(scale)
    return scales

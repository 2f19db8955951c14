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
(``model.py``). Matrices start as at the base depth, so rules that scale them by depth are refused. Gains that start by
depth, those of ``layer_scale`` and ``depth_scaled``, are not.

Paper and code: the paper multiplies eps in the residual blocks, the code everywhere; this follows the paper. Our
choices: encoder and decoder have an m each, from their own layers, with one L_base. The theory asks that the sum of a
stack's branches stays bounded, and a decoder's three branches per layer are as many at the base depth. The theory is
that of Pre-LN; where a norm follows the sum, as in Post-LN, nobody has tried, and the option is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class UpdateScale(NamedTuple):
    """Factors on a parameter's settings in the optimizer."""

    rate: float = 1.0
    decay: float = 1.0
    eps: float = 1.0

    def times(self, other: UpdateScale) -> UpdateScale:
        """Return both together."""
        return UpdateScale(*(a * b for a, b in zip(self, other, strict=True)))


SPARED = UpdateScale(decay=0.0)
"""The scale of parameters without weight decay."""


def branch_multiplier(config: Any, depth: int) -> float:
    """Return the factor on every branch of a stack of ``depth`` layers; 1 where the option is off."""
    return float(depth / config.base_depth) ** -float(config.depth_mup) if config.depth_mup else 1.0


def layer_scale(config: Any, depth: int) -> UpdateScale:
    """Return the scale of the updates of a stack's layers; the identity where the option is off."""
    if not config.depth_mup:
        return UpdateScale()
    m, alpha = float(depth / config.base_depth), float(config.depth_mup)
    return UpdateScale(rate=m ** (alpha - 1), eps=m**-alpha)

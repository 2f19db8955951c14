"""Beam's residuals: a sandwich whose stream stays the average of all that was added to it, in the root-mean sense.

::

    x ─┬─► LN ─► F ─► LN ─► · w ─► + ─► x'      w = 1/sqrt(k), r = sqrt((k-1)/k)
       └──────────── · r ──────────┘

x' = sqrt((k-1)/k) x + sqrt(1/k) LN(F(LN(x))), k = 2, 3, ... over the sub-layers of the stack (the embedding is the
first term), and a norm on top. Reflection AI 2026, "Beam-1.0-501B-A23B" (a release of weights without a paper).
Checked against huggingface/transformers@v5.23.0 (``modeling_beam.py``).

If the terms are uncorrelated and of variance 1, so is the stream, in any depth. sqrt(k) x obeys the equation of
``sandwich_ln``, and whatever reads the stream normalises it: but for eps the two compute the same function of the same
weights, and differ in the range of numbers that half precision has to hold. By our choice k counts each stack's own
sub-layers, cross-attention among them.
"""

from typing import Any

from torch import Tensor

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.sandwich_ln import SandwichConnection, SandwichLN


class BeamConnection(SandwichConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.k = site.layer * site.n_sub + site.index + 2
        self.multiplier *= self.k**-0.5

    def write(self, s: Stream, y: Tensor) -> Stream:
        return super().write(s | {"x": (1 - 1 / self.k) ** 0.5 * s["x"]}, y)


@register_variant("beam_residual")
class BeamResidual(SandwichLN):
    title = "Beam's residuals"
    paper = "Reflection AI 2026, Beam-1.0-501B-A23B (released weights)"
    year = 2026
    code = "huggingface/transformers@v5.23.0"
    verified = "Beam in transformers, decoder alone: activations, gradients"
    ships_in = "Beam-1.0"
    extension = "k counts each stack's own sub-layers, cross-attention among them."
    connection = BeamConnection

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        branch = f"sqrt(1 / (k + 1)) {cls.branch(o)}"
        return o.adds(branch, to="sqrt(1 - 1 / (k + 1)) x"), *cls.top(o)

"""Orthogonal residual: of a branch only what is orthogonal to the stream is added to it.

::

    x ─┬─► LN ─► F ─► y - (x·y / x·x) x ─► + ─► x'
       └──────────────────────────────────┘

x' = x + y - (x·y / (x·x + 1e-6)) x with y = F(LN(x)), and a norm on top; products are over the channels of one token,
and x is the stream before its norm. Oh et al. 2025 (2505.11881), whose experiments are on images. Checked against
BootsofLagrangian/ortho-residual@4f663d3 (``llama/residual.py``, "feature"). The stream never shrinks, for |x'|^2 =
|x|^2 + |y'|^2 with y' what is added.

The authors' "global", and ``orthog_residual`` of x-transformers, take one product for a whole sentence: a token then
sees later ones. That is not here.
"""

from typing import Any, ClassVar

from torch import Tensor

from fairseq_residuals.wirings.core.base import Stream, Summation
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.utils.precision import at_least_fp32
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection

LEAST_SQUARE = 1e-6


class OrthogonalConnection(PreLNConnection):
    summation: Summation = "none"

    def write(self, s: Stream, y: Tensor) -> Stream:
        x, exact = at_least_fp32(s["x"]), at_least_fp32(y)
        share = (x * exact).sum(-1, keepdim=True) / (x.square().sum(-1, keepdim=True) + LEAST_SQUARE)
        return s | {"x": (x + exact - share * x).to(s["x"].dtype)}


@register_variant("orthogonal_residual")
class OrthogonalResidual(OptionalTopNorm):
    title = "Orthogonal residual"
    paper = "Oh et al. 2025, Revisiting Residual Connections: Orthogonal Updates for Stable and Efficient Deep Networks"
    year = 2025
    code = "BootsofLagrangian/ortho-residual@4f663d3"
    verified = "authors' code, decoder alone: activations, gradients"
    extension = "Cross-attention is one more sub-layer."
    summation: ClassVar[Summation] = "none"
    connection = OrthogonalConnection

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return "y = F(LN(x)); x = x + y - dot(x, y) / (dot(x, x) + 10^-6) * x", *cls.top(o)

"""ResiDual: a Post-LN stream and, beside it, the plain sum of all that was added, joined at the top.

::

    x ─┬─► F ─┬─► + ─► LN ─► x'
       └──────│───┘
    d ────────└─► + ───────► d'          output: x_L + LN(d_L)

Xie et al. 2023, section 2.2: x' = LN(x + F(x)), d' = d + F(x), y = x_L + LN(d_L). Checked against
microsoft/ResiDual@8682f75 (``resi_dual.py``, ``resi_dual_layers.py``).

Paper and code: the paper does not say where d starts (code: at the embedding), nor that the last norm has eps 1e-7.
Against overflow in half precision d is kept smaller by a factor ``scale``, which the last norm takes out again up to
its eps (but DyT does not; OPUS-100 used 0.05). ``alpha`` weighs x_L.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import LARGEST, option
from fairseq_residuals.wirings.core.registry import register_variant


class ResiDualConnection(Connection):
    """Stream: "dual" (T, B, C), the sum of everything added so far, times ``scale``."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.scale = site.config.scale
        self.norm = site.new_norm()

    def write(self, s: Stream, y: Tensor) -> Stream:
        return s | {"x": self.norm(s["x"] + y), "dual": s["dual"] + self.scale * y}


@register_variant("resi_dual")
class ResiDual(Variant):
    title = "ResiDual"
    paper = "Xie et al. 2023, ResiDual: Transformer with Dual Residual Connections"
    year = 2023
    code = "microsoft/ResiDual@8682f75"
    verified = "authors' code: activations, gradients, generation, initialisation"
    connection = ResiDualConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        scale: float = option(1.0, "factor on the second stream, for half precision", minimum=1e-4, maximum=1.0)
        alpha: float = option(1.0, "factor on the Post-LN stream in the output", minimum=-LARGEST, maximum=LARGEST)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        scale, alpha = "" if o.scale == 1 else "scale ", "" if o.alpha == 1 else "alpha "
        return f"start: d = {scale}x", f"y = F(x); x = LN(x + y); d = d + {scale}y", f"output {alpha}x + LN(d)"

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.norm = shape.new_norm(eps=1e-7)

    def open(self, x: Tensor) -> Stream:
        return {"x": x, "dual": self.config.scale * x}

    def layer_output(self, s: Stream) -> Tensor:
        return self.close(s)

    def close(self, s: Stream) -> Tensor:
        return self.config.alpha * s["x"] + self.norm(s["dual"])

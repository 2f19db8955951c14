"""Evaluate each layer of an encoder several times: what the steps of different orders have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fairseq_residuals.wirings.core.base import RunLayer, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.common_options import Init
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.variants._layer_history import LayerHistory
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection

Derivative = Callable[[Tensor], Tensor]
FIRST = (
    "encoder, first of a layer: z = x",
    "x = x + F(LN(x))",
    "encoder, last of a layer: f[e] = x - z",
)
"""The equations of each evaluation: f is what a layer adds to z."""
COMBINED = "x = sum_{j=0..l} W[l,j] y[j]"
AFTER = f"after each layer: y[l] = LN[l](x)\nafter each layer: {COMBINED}"


class ODETransformer(Variant):
    """Stream, with DLCL: "y0", "y1", ... (T, B, C), the normalized outputs of the layers so far."""

    paper = "Li et al. 2022, ODE Transformer: An Ordinary Differential Equation-Inspired Model for Sequence Generation"
    year = 2022
    code = "libeineu/ODE-Transformer@bcf51e8"
    extension = "f is what a layer adds; with inner_identity, as in the authors' code, its whole output."
    rewrites: ClassVar[tuple[tuple[str, Any, str, str], ...]] = (
        ("inner_identity", True, "f[e] = x - z", "f[e] = x"),
        ("dlcl", True, "output", f"start: y[0] = x\nstart: {COMBINED}\n{AFTER}\noutput"),
    )
    symbols: ClassVar[dict[str, str]] = {"W": "history.weight"}
    connection = PreLNConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        init: Init = option(
            "fairseq_0.8",
            "as for every wiring; see wirings/core/initialization.py",
            for_training=True,
        )
        inner_identity: bool = option(False, "f returns its input too, as in the authors' code")
        dlcl: bool = option(
            False, "around the layers, as in the authors' models; see fairseq_residuals/wirings/variants/dlcl.py"
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.history = LayerHistory(LayerHistory.Config(), shape) if config.dlcl else None
        self.norm = shape.new_norm()

    @classmethod
    def refusal(cls, *, alone: bool, topmost: bool, depth: int = 2) -> str:
        return "only an encoder's layers are evaluated several times, and a language model has none" if alone else ""

    def step(self, f: Derivative, x: Tensor) -> Tensor:
        """Return x', (T, B, C)."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it integrates")

    def evaluate(self, layer: RunLayer, s: Stream) -> tuple[Stream, Tensor | None]:
        if self.shape.stack == "decoder":
            return layer(s)
        evaluations: list[Stream] = []

        def f(x: Tensor) -> Tensor:
            evaluations.append(layer(s | {"x": x})[0])
            after = evaluations[-1]["x"]
            return after if self.config.inner_identity else after - x

        x = self.step(f, s["x"])
        # what else a layer leaves for those above, such as its values, is the last evaluation's
        return evaluations[-1] | {"x": x}, None

    def open(self, x: Tensor) -> Stream:
        return {"x": x} if self.history is None else self.history.open(x)

    def after_layer(self, i: int, s: Stream) -> Stream:
        if self.history is None:
            return s
        s = s | {f"y{i + 1}": self.history.normalize(i + 1, s["x"])}
        return s | {"x": self.history.combine(i + 1, s)}

    def close(self, s: Stream) -> Tensor:
        return self.norm(s["x"])

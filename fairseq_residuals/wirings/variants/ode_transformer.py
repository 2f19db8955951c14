"""ODE Transformer: each encoder layer is a step of Runge and Kutta's, and so evaluated two or four times.

Li et al. 2022, "ODE Transformer: An Ordinary Differential Equation-Inspired Model for Sequence Generation", with f a
whole Pre-LN layer::

    ode_rk2:  k_1 = f(x),  k_2 = f(x + k_1),                           x' = x + (k_1 + k_2) / 2
    ode_rk4:  k_1 = f(x),  k_2 = f(x + k_1/2),  k_3 = f(x + k_2/2),  k_4 = f(x + k_3),
                                                                       x' = x + (k_1 + 2 k_2 + 2 k_3 + k_4) / 6

``mode=gated`` of RK2, the published results': x' = x + g k_1 + (1 - g) k_2 with g = sigmoid(w · [k_1, k_2] + b), one
number for each position; ``alpha``: x' = x + a_1 k_1 + a_2 k_2. Gate and a are one for the whole stack. Checked against
libeineu/ODE-Transformer@bcf51e8 (``ode_transformer.py``).

Paper and code: in the code f returns its input too, so the old stream is multiplied by 2.5 or more in every layer, and
what was added first dominates; that its models run with DLCL, whose norms take this out again, belongs to them:
``inner_identity=true,dlcl=true``. By itself f is here what the layer adds, as in Runge and Kutta's method.

As there, only the encoder's layers are evaluated several times; the decoder, each of whose evaluations would need keys
and values of its own, is Pre-LN, with ``dlcl`` too. Dropout is drawn anew in each evaluation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import DepthWeights, RunLayer, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.common_options import INIT_HELP, Init
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.dlcl import DLCL
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection

Derivative = Callable[[Tensor], Tensor]


class ODETransformer(Variant):
    """Stream, with DLCL: "y0", "y1", ... (T, B, C), the normalized outputs of the layers so far."""

    paper = "Li et al. 2022, ODE Transformer: An Ordinary Differential Equation-Inspired Model for Sequence Generation"
    year = 2022
    code = "libeineu/ODE-Transformer@bcf51e8"
    extension = "f is what a layer adds; with inner_identity, as in the authors' code, its whole output."
    symbols: ClassVar[dict[str, str]] = {"W": "history.weight"}
    connection = PreLNConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        init: Init = option("fairseq_0.8", INIT_HELP, for_training=True)
        inner_identity: bool = option(False, "f returns its input too, as in the authors' code")
        dlcl: bool = option(
            False, "DLCL around the layers, as in the authors' models; see fairseq_residuals/wirings/variants/dlcl.py"
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.history = DLCL(DLCL.Config(), shape) if config.dlcl else None
        self.norm = shape.new_norm()

    @classmethod
    def evaluation(cls, o: Any) -> tuple[str, ...]:
        """Return the equations of each evaluation: f is what a layer adds to z."""
        value = "x" if o.inner_identity else "x - z"
        return "encoder, first of a layer: z = x", "x = x + F(LN(x))", f"encoder, last of a layer: f[e] = {value}"

    @classmethod
    def top(cls, o: Any) -> tuple[str, ...]:
        """Return the equations of what is around the layers."""
        combined = "x = sum_{j=0..l} W[l,j] y[j]"
        around = "start: y[0] = x", f"start: {combined}", "after each layer: y[l] = LN[l](x)"
        return (*around, f"after each layer: {combined}", "output LN(x)") if o.dlcl else ("output LN(x)",)

    @classmethod
    def refusal(cls, *, alone: bool, topmost: bool, depth: int = 2) -> str:
        several = "only the layers of a pair's encoder (build_stack: other_depth) are evaluated several times"
        return f"{several}, and a language model has none" if alone else ""

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

    def depth_weights(self, below: int) -> DepthWeights | None:
        return None if self.history is None else self.history.depth_weights(below)


@register_variant("ode_rk2")
class RK2(ODETransformer):
    title = "ODE Transformer, RK2"
    symbols = ODETransformer.symbols
    verified = "authors' code, encoder and decoder, gated, alpha, with DLCL: activations, gradients"

    @dataclass(frozen=True)
    class Config(ODETransformer.Config):
        mode: Literal["standard", "gated", "alpha"] = option("standard", "how k_1 and k_2 are weighed")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        combined = {"standard": "(f[1] + f[2]) / 2", "gated": "g f[1] + (1 - g) f[2]"}
        step = combined.get(o.mode, "alpha[0] f[1] + alpha[1] f[2]")
        gate = "g = sigmoid(gate([f[1], f[2]])); " if o.mode == "gated" else ""
        return (
            "encoder: where E = 2",
            *cls.evaluation(o),
            "encoder, last of a layer, e = 1: x = x_in + f[1]",
            f"encoder, last of a layer, e = 2: {gate}x = x_in + {step}",
            *cls.top(o),
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        if shape.stack == "encoder" and config.mode == "gated":
            self.gate = nn.Linear(2 * shape.dim, 1)
            nn.init.xavier_uniform_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)
        elif shape.stack == "encoder" and config.mode == "alpha":
            self.alpha = nn.Parameter(torch.ones(2))

    def step(self, f: Derivative, x: Tensor) -> Tensor:
        k1 = f(x)
        k2 = f(x + k1)
        if self.config.mode == "gated":
            g = self.gate(torch.cat([k1, k2], -1)).sigmoid()
            return x + g * k1 + (1 - g) * k2
        if self.config.mode == "alpha":
            return x + self.alpha[0] * k1 + self.alpha[1] * k2
        return x + (k1 + k2) / 2


@register_variant("ode_rk4")
class RK4(ODETransformer):
    title = "ODE Transformer, RK4"
    symbols = ODETransformer.symbols
    verified = "authors' code, encoder and decoder: activations, gradients"

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "encoder: where E = 4",
            *cls.evaluation(o),
            "encoder, last of a layer, e <= 2: x = x_in + f[e] / 2",
            "encoder, last of a layer, e = 3: x = x_in + f[3]",
            "encoder, last of a layer, e = 4: x = x_in + (f[1] + 2 f[2] + 2 f[3] + f[4]) / 6",
            *cls.top(o),
        )

    def step(self, f: Derivative, x: Tensor) -> Tensor:
        k1 = f(x)
        k2 = f(x + k1 / 2)
        k3 = f(x + k2 / 2)
        k4 = f(x + k3)
        return x + (k1 + 2 * k2 + 2 * k3 + k4) / 6

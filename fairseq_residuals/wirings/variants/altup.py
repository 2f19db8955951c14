"""AltUp, alternating updates: n streams, of which a layer runs on one; what it makes of that one corrects all.

::

    m = tanh(R LN(X_a) / C)       Y_i = X_i + Σ_j P(m)_ij X_j              predict, below each layer
    z = layer(Y_a)
    m = tanh(R LN(z) / C)         X_i = Y_i + (1 + G(m)_i) (z - Y_a)       correct, above it

R (n, C), P (n n, n) and G (n, n) are matrices of each layer, a is the active stream. X_0 starts as the embedding x, and
X_i, i > 0, as O_i x, of the root mean square of x. The output is LN of the mean of X_0 and of U_i X_i, of the root mean
square of X_0. Baykal et al. 2023, "Alternating Updates for Efficient Transformers", in the form that was released in
Gemma 3n (huggingface/transformers 5.23.0, ``gemma3n``), which ``laurel_gemma`` with an ``n`` is: this is it around
Pre-LN. In the paper P and G are numbers of a layer without a router, and layers take turns in the streams.

The start is ours: O_i = U_i = I, G = 0, and rows of P that sum to zero, which tell the streams apart but change none of
them as long as they are alike: Pre-LN. Gemma 3n adds inputs for each layer to all streams but the first, which belong
to its embeddings and not here, and its training clamps P and G at 120.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fairseq_residuals.wirings.core.base import StackShape, Stream
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection, TopNorm

LEAST_MEAN_SQUARE = 1e-5
MOST_STREAMS = 64
ACTIVE_HELP = "the stream, from 0, on which layers run"


def as_large_as(x: Tensor, y: Tensor) -> Tensor:
    """Return ``y`` times a number at each position, which gives it the root mean square of ``x``; (..., C) each."""
    # lengths, whose gradient is zero at padding, where a root of a mean square has none
    exact = torch.promote_types(x.dtype, torch.float32)
    of_x, of_y = (torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=exact) for z in (x, y))
    return (y * (of_x / of_y.clamp_min((LEAST_MEAN_SQUARE * x.size(-1)) ** 0.5))).to(x.dtype)


class AltUpVariant(TopNorm):
    """Run layers on one of n streams; with n = 1 on the only one, as if this were not here.

    Stream, with n > 1: "streams" (T, B, n, C), below a layer those predicted, on top those corrected.
    """

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        n, dim, layers = config.n, shape.dim, range(shape.depth if config.n > 1 else 0)
        self.router_norms = nn.ModuleList(shape.new_norm() for _ in layers)
        self.router = nn.ParameterList(torch.randn(n, dim) * dim**-0.5 for _ in layers)
        draws = (torch.randn(n, n, n) * n**-0.5 for _ in layers)
        self.predict = nn.ParameterList((draw - draw.mean(1, keepdim=True)).flatten(0, 1) for draw in draws)
        self.correct = nn.ParameterList(torch.zeros(n, n) for _ in layers)
        self.opening, self.closing = (nn.ParameterList(torch.eye(dim) for _ in range(n - 1)) for _ in range(2))

    @classmethod
    def contradiction(cls, config: Any) -> str:
        unknown = f"option active={config.active}, for the streams are 0 to {config.n - 1}"
        return super().contradiction(config) or (unknown if config.active >= config.n else "")

    @classmethod
    def around(cls, o: Any, *layer: str) -> tuple[str, ...]:
        """Return the equations of a stack, of those of its layers alone."""
        if o.n == 1:
            return (*layer, *cls.top(o))
        m = "m = tanh(router[l-1](LN_router[l-1]({}) / d))"
        sized = "sqrt(dot({0}, {0}) / max(dot(y[i], y[i]), d 10^-5)) * y[i] for i = 1..n-1"
        return (
            "start: X[0] = x; y[i] = opening[i-1](x) for i = 1..n-1",
            f"start: X[i] = {sized.format('x')}",
            f"first of a layer: {m.format('X[active]')}; p = predict[l-1](m)",
            "first of a layer: Y[i] = X[i] + sum_{j=0..n-1} part(p, n i + j, n^2) X[j] for i = 0..n-1; x = Y[active]",
            *layer,
            f"last of a layer: {m.format('x')}; g = correct[l-1](m)",
            "last of a layer: X[i] = Y[i] + (1 + part(g, i, n)) (x - Y[active]) for i = 0..n-1",
            "after each layer, l = L: y[i] = closing[i-1](X[i]) for i = 1..n-1",
            f"after each layer, l = L: X[i] = {sized.format('X[0]')}",
            "output LN(sum_{i=0..n-1} X[i] / n)",
        )

    def modality(self, i: int, x: Tensor) -> Tensor:
        """Return what the router of layer ``i`` makes of a stream, (T, B, C) -> (T, B, n)."""
        return linear(self.router_norms[i](x) / x.size(-1), self.router[i]).tanh()

    def predicted(self, i: int, streams: Tensor) -> Stream:
        """Return the streams as predicted below layer ``i``, of those (T, B, n, C) that are there; "x" is its input."""
        n, active = self.config.n, self.config.active
        weights = linear(self.modality(i, streams[..., active, :]), self.predict[i]).unflatten(-1, (n, n))
        streams = streams + weights @ streams
        return {"x": streams[..., active, :], "streams": streams}

    def corrected(self, i: int, s: Stream) -> Tensor:
        """Return the streams (T, B, n, C) above layer ``i``, which made "x"."""
        predicted, z = s["streams"], s["x"]
        shares = 1 + linear(self.modality(i, z), self.correct[i])
        return predicted + shares.unsqueeze(-1) * (z - predicted[..., self.config.active, :]).unsqueeze(-2)

    def open(self, x: Tensor) -> Stream:
        if self.config.n == 1:
            return super().open(x)
        others = (as_large_as(x, linear(x, opening)) for opening in self.opening)
        return self.predicted(0, torch.stack([x, *others], -2))

    def after_layer(self, i: int, s: Stream) -> Stream:
        if self.config.n == 1:
            return s
        streams = self.corrected(i, s)
        if i + 1 < self.shape.depth:
            return s | self.predicted(i + 1, streams)
        return s | {"x": streams[..., self.config.active, :], "streams": streams}

    def close(self, s: Stream) -> Tensor:
        if self.config.n == 1:
            return super().close(s)
        first, *others = s["streams"].unbind(-2)
        back = (as_large_as(first, linear(x, closing)) for x, closing in zip(others, self.closing, strict=True))
        return self.norm(torch.stack([first, *back]).mean(0))  # type: ignore[no-any-return,misc]


@register_variant("altup")
class AltUp(AltUpVariant):
    title = "AltUp"
    paper = "Baykal et al. 2023, Alternating Updates for Efficient Transformers"
    year = 2023
    starts_as = "pre_ln"
    code = "huggingface/transformers@v5.23.0"
    verified = "Gemma 3n in transformers, around LAuReL, decoder alone (laurel_gemma:n): activations, gradients"
    extension = (
        "Encoder and decoder have streams of their own; cross-attention is within the layer. They start as Pre-LN."
    )
    connection = PreLNConnection

    @dataclass(frozen=True)
    class Config(AltUpVariant.Config):
        n: int = option(4, "streams", minimum=2, maximum=MOST_STREAMS)
        active: int = option(0, ACTIVE_HELP, minimum=0, maximum=MOST_STREAMS - 1)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return cls.around(o, "x = x + F(LN(x))")

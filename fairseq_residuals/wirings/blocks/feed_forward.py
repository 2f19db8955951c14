"""The position-wise FFN on PyTorch alone, with the parameters and random draws of fairseq's layers; and gated ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_residuals.wirings.core.errors import UserError, did_you_mean

Activation = Literal["relu", "relu_squared", "gelu", "gelu_accurate", "tanh", "linear", "silu", "swiglu", "geglu"]


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


@dataclass(frozen=True)
class Gated:
    """The activation of a gated FFN (Shazeer 2020, "GLU Variants Improve Transformer"): (..., 2 F) -> (..., F).

    The first half of what the first matrix gives is the gate, the second half what it multiplies.
    """

    activation: Callable[[Tensor], Tensor]
    """The activation of the gate."""

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return self.activation(gate) * up


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu_squared": _relu_squared,
    "gelu": F.gelu,
    "gelu_accurate": partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
    "linear": torch.positive,
    "silu": F.silu,
    "swiglu": Gated(F.silu),
    "geglu": Gated(F.gelu),
}
"""Activations by fairseq's names.

``silu`` is fairseq's by the patch :mod:`modern_fairseq.fixes.layers`, and it has no gated one.
"""


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """Return the function of a name.

    Raises:
        UserError: there is no such activation.
    """
    if name not in ACTIVATIONS:
        raise UserError(
            f"ffn={name!r} is unknown{did_you_mean(str(name), ACTIVATIONS)}; valid are {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]  # type: ignore[index]


class FeedForward(nn.Module):
    """Two matrices with an activation in between (Vaswani et al. 2017, section 3.3)."""

    def __init__(
        self,
        dim: int,
        ffn_dim: int,
        activation: Activation = "relu",
        activation_dropout: float = 0.0,
        *,
        bias: bool = True,
    ) -> None:
        """Draw the weights as fairseq does: PyTorch's default.

        Args:
            dim: channels C.
            ffn_dim: inner channels F, those of the second matrix; the first matrix of a gated FFN gives 2 F.
            activation: one of :data:`ACTIVATIONS`.
            activation_dropout: after the activation.
            bias: whether the matrices have biases.

        Raises:
            UserError: there is no such activation.
        """
        super().__init__()
        self.activation_fn = activation_named(activation)
        self.fc1 = nn.Linear(dim, 2 * ffn_dim if isinstance(self.activation_fn, Gated) else ffn_dim, bias)
        self.fc2 = nn.Linear(ffn_dim, dim, bias)
        self.activation_dropout_module = nn.Dropout(activation_dropout)

    def forward(self, h: Tensor, *, inner: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Run it.

        Args:
            h: (..., C).
            inner: (..., F) -> (..., F), what a wiring does before the second matrix.

        Returns:
            (..., C)
        """
        x = self.activation_dropout_module(self.activation_fn(self.fc1(h)))
        return self.fc2(x if inner is None else inner(x))  # type: ignore[no-any-return]

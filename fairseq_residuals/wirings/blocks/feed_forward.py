"""The position-wise FFN on PyTorch alone, with the parameters and random draws of fairseq's layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_residuals.wirings.core.errors import UserError, did_you_mean

Activation = Literal["relu", "relu_squared", "gelu", "gelu_accurate", "tanh", "linear", "silu"]


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu_squared": _relu_squared,
    "gelu": F.gelu,
    "gelu_accurate": partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
    "linear": torch.positive,
    "silu": F.silu,
}
"""By fairseq's names; ``silu`` is fairseq's by the patch :mod:`modern_fairseq.fixes.activations`."""


class FeedForward(nn.Module):
    """Two matrices with an activation in between (Vaswani et al. 2017, section 3.3)."""

    def __init__(
        self, dim: int, ffn_dim: int, activation: Activation = "relu", activation_dropout: float = 0.0
    ) -> None:
        """Draw the weights as fairseq does: PyTorch's default.

        Args:
            dim: channels C.
            ffn_dim: inner channels F.
            activation: one of :data:`ACTIVATIONS`.
            activation_dropout: after the activation.

        Raises:
            UserError: there is no such activation.
        """
        if activation not in ACTIVATIONS:
            hint = did_you_mean(str(activation), ACTIVATIONS)
            raise UserError(f"activation={activation!r} is unknown{hint}; valid are {', '.join(ACTIVATIONS)}")
        super().__init__()
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.activation_fn = ACTIVATIONS[activation]
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

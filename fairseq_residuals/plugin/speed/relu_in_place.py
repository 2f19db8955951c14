"""The activation of an FFN in the memory of its input, which nobody else has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_residuals.wirings.core.layer import ResidualLayer
from fairseq_residuals.wirings.utils.torch_private import has_hooks


@dataclass(frozen=True)
class ReLUInPlace:
    """relu of what ``before`` has just returned: in place, unless hooks may have kept it."""

    before: nn.Module

    def __call__(self, h: Tensor) -> Tensor:
        """(..., F) -> (..., F)"""
        return torch.relu(h) if has_hooks(self.before) else torch.relu_(h)


def attach(model: nn.Module) -> None:
    """Attach it to every layer whose activation is relu."""
    for layer in model.modules():
        if isinstance(layer, ResidualLayer) and getattr(layer, "activation_fn", None) is F.relu:
            layer.activation_fn = ReLUInPlace(layer.fc1)

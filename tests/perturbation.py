"""Move parameters away from where they start: an identity hides mistakes."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def perturb(model: Model, seed: int = 7, scale: float = 0.1) -> Model:
    """Move every parameter away from its initial value, so that a gain of 1 hides nothing; return the model.

    Args:
        scale: standard deviation of what is added. What embeds padding stays zero.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    return model

"""Kinds of norms: the option ``norm_type``, common to all variants.

That LayerNorm is the default is our choice where authors had another: from 2024 on nearly all had RMSNorm (DenseFormer
LayerNorm without bias).

=========  ===========================================================================================================
``layer``  LayerNorm (Ba et al. 2016) with gain and bias, eps 1e-5
``rms``    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization": a gain and no bias, eps 1e-6
``dyt``    Zhu et al. 2025, "Transformers without Normalization", Eq. 1: dynamic tanh (jiachenzhu/DyT@aab5dde)
=========  ===========================================================================================================

``layer`` is PyTorch's. fairseq's own LayerNorm is that too, unless apex is installed and there is a GPU: it is then a
kernel of apex, with the same names and up to rounding the same numbers.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

NormType = Literal["layer", "rms", "dyt"]


def build_norm(norm_type: NormType, width: int, eps: float, bias: bool = True) -> nn.Module:
    """Return a norm over the last ``width`` channels; ``eps`` 0 is the usual one of its kind, and DyT has none."""
    if norm_type == "rms":
        return nn.RMSNorm(width, eps=eps or 1e-6)
    if norm_type == "dyt":
        return DyT(width, bias)
    return nn.LayerNorm(width, eps=eps or 1e-5, bias=bias)


def is_norm(module: nn.Module) -> bool:
    """Return whether it is a norm of any kind, or stands where one does."""
    return hasattr(module, "normalized_shape")


class DyT(nn.Module):
    """w tanh(a x) + b, a scalar ``a`` that starts at 0.5; no statistic is taken of x, and nothing is normalised."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        # what PyTorch's norms have
        self.normalized_shape = (width,)
        self.alpha = nn.Parameter(torch.full((1,), 0.5))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)"""
        y = self.weight * torch.tanh(self.alpha * x)
        return y if self.bias is None else y + self.bias

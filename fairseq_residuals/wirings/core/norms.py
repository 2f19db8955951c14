"""Kinds of norms: the option ``norm_type``, common to all variants.

That LayerNorm is the default is our choice where authors had another: from 2024 on nearly all had RMSNorm (DenseFormer
LayerNorm without bias).

=============  =======================================================================================================
``layer``      LayerNorm (Ba et al. 2016) with gain and bias, eps 1e-5
``rms``        Zhang and Sennrich 2019, "Root Mean Square Layer Normalization": a gain and no bias, eps 1e-6
``scalenorm``  Nguyen and Salazar 2019, "Transformers without Tears", section 3.2: one gain for all channels and no bias
               (tnq177/transformers_without_tears@c2dfaaa, ``layers.py``)
``dyt``        Zhu et al. 2025, "Transformers without Normalization", Eq. 1: dynamic tanh (jiachenzhu/DyT@aab5dde)
``derf``       Chen et al. 2025, "Stronger Normalization-Free Transformers": dynamic erf (zlab-princeton/Derf@8dd9ea3)
=============  =======================================================================================================

``layer`` is PyTorch's. fairseq's own LayerNorm is that too, unless apex is installed and there is a GPU: it is then a
kernel of apex, with the same names and up to rounding the same numbers.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

NormType = Literal["layer", "rms", "scalenorm", "dyt", "derf"]


def build_norm(norm_type: NormType, width: int, eps: float, bias: bool = True) -> nn.Module:
    """Return a norm over the last ``width`` channels; ``eps`` 0 is that of its kind, and DyT and Derf have none."""
    if norm_type == "rms":
        return nn.RMSNorm(width, eps=eps or 1e-6)
    if norm_type == "scalenorm":
        return ScaleNorm(width, eps or 1e-5)
    if norm_type == "dyt":
        return DyT(width, bias)
    if norm_type == "derf":
        return Derf(width, bias)
    return nn.LayerNorm(width, eps=eps or 1e-5, bias=bias)


@torch.no_grad()
def scale_gain(norm: nn.Module, factor: float) -> None:
    """Multiply the gain of a norm of any kind, and not its bias."""
    dict(norm.named_parameters())["weight"].mul_(factor)


def is_norm(module: nn.Module) -> bool:
    """Return whether it is a norm of any kind, or stands where one does."""
    return hasattr(module, "normalized_shape")


class ScaleNorm(nn.Module):
    """g x / max(||x||, eps), with one number g that starts at sqrt(C): RMSNorm whose gains are all g / sqrt(C).

    ``eps`` bounds the norm from below; it is not added to the mean square, as in the other kinds.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.normalized_shape = (width,)
        self.eps = eps
        self.weight = nn.Parameter(torch.full((1,), width**0.5))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)"""
        # in single precision at least: in half precision eps is close to 0, and a norm may be too large
        exact = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=exact)
        return (self.weight * (x / norm.clamp_min(self.eps))).to(x.dtype)


class DyT(nn.Module):
    """w tanh(a x) + b, a scalar ``a`` that starts at 0.5; no statistic is taken of x, and nothing is normalised."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        # what PyTorch's norms have
        self.normalized_shape = (width,)
        self.alpha = nn.Parameter(torch.full((1,), 0.5))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def squash(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C), between -1 and 1."""
        return torch.tanh(self.alpha * x)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)"""
        y = self.weight * self.squash(x)
        return y if self.bias is None else y + self.bias


class Derf(DyT):
    """w erf(a x + s) + b, with scalars a, which starts at 0.5, and s, which starts at 0.

    The authors' language models started a at 1 and also learned the factor on the embeddings, sqrt(C); here a starts as
    in their models of images, speech and DNA, and fairseq's factor is constant.
    """

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__(width, bias)
        self.shift = nn.Parameter(torch.zeros(1))

    def squash(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C), between -1 and 1."""
        return torch.erf(self.alpha * x + self.shift)

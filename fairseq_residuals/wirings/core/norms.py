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

:func:`register_norm` adds others. ``layer`` is PyTorch's. fairseq's own LayerNorm is that too, unless apex is installed
and there is a GPU: it is then a kernel of apex, with the same names and up to rounding the same numbers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.errors import UserError

NormFactory = Callable[..., nn.Module]
"""Maker of a norm of a number of channels; is also given ``eps`` and ``bias`` where it has arguments of these names."""
_FACTORIES: dict[str, NormFactory] = {}


def register_norm(name: str, factory: NormFactory) -> None:
    """Make a norm known as ``norm_type=name`` to every wiring; a second call replaces what the first one registered.

    Args:
        name: letters, digits and underscores.
        factory: a class, or a function, which is called with the number of channels and returns a module of
            (..., C) -> (..., C) whose gain is its parameter ``weight``; with ``eps`` and ``bias``, too, where it has
            arguments of these names, and ``eps`` where a wiring or an option asks for one.

    Raises:
        UserError: the name is that of a kind of norms of this package, or no name.
    """
    if not name.isidentifier() or name in OWN:
        raise UserError(f"{name!r} cannot name a norm: give letters, digits or _, and none of {', '.join(OWN)}")
    _FACTORIES[name] = factory


def norm_types() -> tuple[str, ...]:
    """Return the kinds of norms that there are."""
    return (*OWN, *_FACTORIES)


def factory_of(norm_type: str) -> NormFactory:
    """Return the maker of a kind of norms."""
    return OWN.get(norm_type) or _FACTORIES[norm_type]


def norm_type_of(named: str | NormFactory) -> str:
    """Return the name of a kind of norms; a class is registered under its own name.

    Raises:
        UserError: it has no name, or that of another class.
    """
    if isinstance(named, str):
        return named
    name = getattr(named, "__name__", "")
    known = _FACTORIES.get(name, named)
    # one that a notebook defines anew is the same
    if (known.__module__, getattr(known, "__qualname__", "")) != (named.__module__, getattr(named, "__qualname__", "")):
        raise UserError(
            f"two norms are called {name}, of which models would have the later one: register_norm(another name)"
        )
    register_norm(name, named)
    return name


def build_norm(norm_type: str, width: int, eps: float, bias: bool = True) -> nn.Module:
    """Return a norm over the last ``width`` channels; ``eps`` 0 is that of its kind, and DyT and Derf have none."""
    factory = factory_of(norm_type)
    named = inspect.signature(factory).parameters
    chosen = {"eps": eps or DEFAULT_EPS.get(norm_type), "bias": bias}
    norm = factory(width, **{name: value for name, value in chosen.items() if name in named and value is not None})
    if not is_norm(norm):
        norm.normalized_shape = (width,)  # type: ignore[assignment]  # by which norms are known
    return norm


def takes_eps(norm_type: str) -> bool:
    """Return whether a kind of norms is given the eps that an option asks for."""
    return "eps" in inspect.signature(factory_of(norm_type)).parameters


def is_norm(module: nn.Module) -> bool:
    """Return whether it is a norm of any kind, or stands where one does."""
    return hasattr(module, "normalized_shape")


def looks_like_norm(module: nn.Module, name: str) -> bool:
    """Return whether a module of somebody else is known as a norm, or it or its class is called one."""
    called = f"{type(module).__name__} {name.rpartition('.')[2]}".lower()
    return is_norm(module) or re.search(r"norm|\bln", called) is not None


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


OWN: dict[str, NormFactory] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "scalenorm": ScaleNorm,
    "dyt": DyT,
    "derf": Derf,
}
DEFAULT_EPS = {"layer": 1e-5, "rms": 1e-6, "scalenorm": 1e-5}

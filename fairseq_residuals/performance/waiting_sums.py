"""Residual, dropout and norm as one kernel, in every wiring whose equations have such a sum.

Nothing here knows a wiring. The dropout of a layer returns a :class:`WaitingSum`, which a connection adds to its stream
as it would a tensor. A norm of the sum computes both at once (:func:`.residual_norm`); anything else that is done with
it computes it first, as PyTorch would. Sums that no norm has asked for are computed when the connection has written its
stream, together with the norm that asked for the sum of this place in the pass before, as those of Pre-LN do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from fairseq_residuals.core.base import Connection, Stream
from fairseq_residuals.core.layer import ResidualLayer
from fairseq_residuals.core.stack import Stack
from fairseq_residuals.ops.residual_norm import Norm, Summands, residual_norm, residual_sum
from fairseq_residuals.ops.seeded_dropout import NOTHING_DROPPED, Dropout, draw_dropout
from fairseq_residuals.utils.torch_private import has_hooks
from fairseq_residuals.utils.triton_kernels import kernels_run_on

NORMS = (nn.LayerNorm, nn.RMSNorm)


class WaitingSum:
    """α x + β dropout(y), computed when it is used; each of the two terms may be missing."""

    def __init__(
        self,
        x: Tensor | None,
        y: Tensor | None,
        dropout: Dropout = NOTHING_DROPPED,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        self.x, self.y, self.dropout, self.alpha, self.beta = x, y, dropout, alpha, beta
        self.total: Tensor | None = None
        if y is None and alpha == 1:
            self.total = x
        elif x is None and beta == 1 and dropout.seed is None:
            self.total = y

    @property
    def summands(self) -> Summands:
        """What is added up, for an op."""
        assert self.y is not None
        return Summands(self.x, self.y, self.dropout, self.alpha, self.beta)

    @property
    def fuses(self) -> bool:
        """Whether there is a sum to compute together with what follows."""
        return self.total is None and self.y is not None and not torch.is_autocast_enabled(self.y.device.type)

    def settle(self) -> Tensor:
        """Return the sum (T, B, C), computed once."""
        if self.total is None and self.y is None:
            assert self.x is not None
            self.total = self.alpha * self.x
        elif self.total is None:
            self.total = residual_sum(self.summands)
        assert self.total is not None
        return self.total

    def scaled(self, factor: float) -> WaitingSum:
        """Return the sum times ``factor``."""
        return WaitingSum(self.x, self.y, self.dropout, self.alpha * factor, self.beta * factor)

    def plus(self, other: Tensor | WaitingSum) -> WaitingSum | None:
        """Return the sum of both; None where it cannot wait."""
        if isinstance(other, WaitingSum):
            if self.y is None and other.y is not None:
                return other.plus(self)
            if other.y is not None:
                other = other.settle()
        x, alpha = (other, 1.0) if isinstance(other, Tensor) else (other.x, other.alpha)
        assert x is not None
        like = self.y if self.x is None else self.x
        assert like is not None
        if x.shape != like.shape or x.dtype != like.dtype:
            return None
        if self.x is not None:
            x, alpha = torch.add(x if alpha == 1 else alpha * x, self.x, alpha=self.alpha), 1.0
        return WaitingSum(x, self.y, self.dropout, alpha, self.beta)

    def normalized(self, norm: Norm) -> Tensor:
        """Return the norm of the sum, which is kept too."""
        self.total, normed = residual_norm(self.summands, norm)
        return normed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.settle(), name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        result = NotImplemented if rule is None else rule(*args, **kwargs)
        if result is not NotImplemented:
            return result
        return func(*tree_map(_settled, args), **tree_map(_settled, kwargs))

    def _or_settled(self, func: Any, other: Any) -> Any:
        return self.__torch_function__(func, (), (self, other))

    def __add__(self, other: Any) -> Any:
        return self._or_settled(torch.add, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        return self._or_settled(torch.mul, other)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Any:
        return self.settle() - other

    def __truediv__(self, other: Any) -> Any:
        return self.settle() / other

    def __matmul__(self, other: Any) -> Any:
        return self.settle() @ other

    def __rsub__(self, other: Any) -> Any:
        return other - self.settle()

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.settle()

    def __pow__(self, other: Any) -> Any:
        return self.settle() ** other

    def __neg__(self) -> Any:
        return self.scaled(-1.0)

    def __getitem__(self, index: Any) -> Any:
        return self.settle()[index]


def _settled(value: Any) -> Any:
    return value.settle() if isinstance(value, WaitingSum) else value


def _add(first: Any, second: Any, **others: Any) -> Any:
    if others or not all(isinstance(x, (Tensor, WaitingSum)) for x in (first, second)):
        return NotImplemented
    waiting, other = (first, second) if isinstance(first, WaitingSum) else (second, first)
    total = waiting.plus(other)
    return NotImplemented if total is None else total


def _multiply(first: Any, second: Any, **others: Any) -> Any:
    waiting, factor = (first, second) if isinstance(first, WaitingSum) else (second, first)
    return NotImplemented if others or not isinstance(factor, (int, float)) else waiting.scaled(factor)


def _layer_norm(x: Any, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Any:
    if not isinstance(x, WaitingSum) or not x.fuses:
        return NotImplemented
    return x.normalized(Norm(weight, bias, eps))


def _rms_norm(x: Any, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Any:
    if not isinstance(x, WaitingSum) or not x.fuses or eps is None:
        return NotImplemented
    return x.normalized(Norm(weight, None, eps, centred=False))


RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), _add),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _multiply),
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
}
"""What can be done with a sum without computing it first."""


class Prepared(NamedTuple):
    """Attached to a sum: where it was written, and its norm where that place knows which."""

    place: WaitingWrite
    version: int
    norm: nn.Module | None
    normed: Tensor | None


class WaitingDropout:
    """Replaces the forward of a layer's dropout by one that waits for what its output is added to."""

    def __init__(self, module: Any) -> None:
        self.module, self.forward = module, module.forward

    def __call__(self, y: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not kernels_run_on(y) or y.dim() != 3:
            return self.forward(y, *args, **kwargs)
        drops = self.module.training or getattr(self.module, "apply_during_inference", False)
        return WaitingSum(None, y, draw_dropout(self.module.p if drops else 0.0, y.device))


class WaitingWrite:
    """Replaces the write of a connection by one whose sums may wait, but not longer than it runs."""

    def __init__(self, connection: Connection) -> None:
        self.write = connection.write
        self.norm: nn.Module | None = None
        """What normalized the sum of the pass before."""

    def __call__(self, s: Stream, y: Any) -> Stream:
        if not isinstance(y, WaitingSum):
            return self.write(s, y)
        x: Any = WaitingSum(s["x"], None)
        written: dict[str, Any] = self.write(s | {"x": x}, y)  # type: ignore[arg-type]
        return {key: self._settled(value) for key, value in written.items()}

    def _settled(self, value: Any) -> Any:
        if not isinstance(value, WaitingSum) or not value.fuses:
            return _settled(value)
        norm = None if self.norm is None else norm_of(self.norm)
        normed = None if norm is None else value.normalized(norm)
        total = value.settle()
        total.prepared = Prepared(self, total._version, self.norm, normed)  # type: ignore[attr-defined]
        return total


class WaitingNorm:
    """Replaces the forward of a norm by one that was perhaps computed with its input, and tells where it was not."""

    def __init__(self, norm: nn.Module) -> None:
        self.norm, self.forward = norm, norm.forward

    def __call__(self, x: Any) -> Any:
        prepared: Prepared | None = None if isinstance(x, WaitingSum) else x.__dict__.pop("prepared", None)
        if prepared is None or prepared.version != x._version:
            return self.forward(x)
        prepared.place.norm = self.norm
        return self.forward(x) if prepared.norm is not self.norm else prepared.normed


def norm_of(module: nn.Module) -> Norm:
    """Return the norm that one of :data:`NORMS` computes."""
    eps: Any = module.eps
    return Norm(module.weight, getattr(module, "bias", None), eps, isinstance(module, nn.LayerNorm))  # type: ignore[arg-type]


def attach(model: nn.Module) -> None:
    """Attach it to every stack of a model that nobody watches by hooks; where no kernels run nothing changes."""
    for stack in model.modules():
        if isinstance(stack, Stack) and not has_hooks(stack):
            for module in stack.modules():
                _attach_to(module)


def _attach_to(module: Any) -> None:
    if isinstance(module, ResidualLayer) and not isinstance(module.dropout_module.forward, WaitingDropout):
        module.dropout_module.forward = WaitingDropout(module.dropout_module)
    elif isinstance(module, Connection) and not isinstance(module.write, WaitingWrite):
        module.write = WaitingWrite(module)  # type: ignore[method-assign]
    elif type(module) in NORMS and module.eps is not None and not isinstance(module.forward, WaitingNorm):
        module.forward = WaitingNorm(module)

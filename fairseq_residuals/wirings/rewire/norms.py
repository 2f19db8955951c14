"""Norms of the framework that a wiring calls at its own places, and what stands there where the framework has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.norms import is_norm
from fairseq_residuals.wirings.rewire.passes import Runs

FUNCTIONS = {"rms_norm": nn.RMSNorm, "layer_norm": nn.LayerNorm}
"""Norms that, without parameters, compute what functions of torch.nn.functional do by themselves."""


def pass_on(x: Tensor) -> Tensor:
    """Return ``x``: the forward of a norm that the wiring calls elsewhere."""
    return x


class Forward:
    """A method as an object, which the compiler of PyTorch 2.9 can compare with another; methods it cannot."""

    def __init__(self, method: Callable[[Tensor], Tensor]) -> None:
        self.method = method

    def __call__(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)"""
        return self.method(x)


class MovedNorm:
    """A norm of the framework, called where the wiring has its own; it has no parameters of its own."""

    def __init__(self, norm: nn.Module, runs: Runs) -> None:
        self.norm, self.runs = norm, runs
        self.own_forward = vars(norm).get("forward")
        """Forward of this norm alone, such as a kernel that was put in place of its class's."""
        self.seen: list[Tensor] | None = None
        """Inputs, where somebody records them."""
        self.call: Callable[[Tensor], Tensor] = norm
        """What the wiring calls: the norm with its hooks, which may make its weights, or what leaves them to others."""

    def __call__(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)"""
        if self.seen is not None:
            self.seen.append(x.detach())
        run, self.runs.now = self.runs.now, None
        y = self.call(x)
        self.runs.now = run
        return y

    def pass_on(self, x: Tensor) -> Tensor:
        """Return ``x`` in a pass along the depth; the forward of the norm, which others may call outside of one."""
        return x if self.runs.now is not None and self.runs.now.stream else self.normalise(x)

    def normalise(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C), without hooks."""
        if self.own_forward is not None:
            return self.own_forward(x)  # type: ignore[no-any-return]
        return type(self.norm).forward(self.norm, x)  # type: ignore[no-any-return]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the norm's own, which stay the framework's."""
        return self.norm.parameters()


def take_over(norm: nn.Module, owner: nn.Module, stays: bool, runs: Runs) -> Callable[[], None] | None:
    """Have a wiring normalise in place of a norm of the framework, which passes on what it is given from then on.

    Args:
        owner: a connection, or a variant: its "norm" becomes that of the framework.
        stays: whether ``norm`` is to stay a part of the sub-layer where ``owner`` has no norms.

    Returns:
        What undoes it; None where the norm stays.
    """
    trained = [parameter for parameter in norm.parameters() if parameter.requires_grad]
    before = vars(norm).get("forward")
    if getattr(owner, "norm", None) is not None:
        del owner.norm
        moved = owner.norm = MovedNorm(norm, runs)  # type: ignore[assignment]
        norm.forward = Forward(moved.pass_on)
    elif stays and not any(is_norm(module) for module in owner.modules()):
        return None
    else:
        norm.requires_grad_(False)  # nothing calls it
        norm.forward = pass_on
    return partial(put_back, norm, before, trained)


def put_back(norm: nn.Module, before: Any, trained: list[nn.Parameter]) -> None:
    """Have the framework normalise again, by the norm's own forward if it had one ``before``, and train ``trained``."""
    del norm.forward
    if before is not None:
        norm.forward = before
    for parameter in trained:
        parameter.requires_grad_(True)


def replaced(norm: str) -> UserError:
    """Return the refusal of a norm that another one stands in for, which would have no effect."""
    return UserError(f"{norm}, which the wiring calls, was replaced or patched since rewire; do so before")


class Factor(nn.Module):
    """A number that a stack's output is multiplied by, so that it is what it was, where no norm is on top of it."""

    number = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)"""
        return x if self.number == 1.0 else self.number * x

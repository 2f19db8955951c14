"""Every function of PyTorch that it does not declare public and this project calls.

All versions from 2.6 on have them, but for those behind a probe: there :data:`None` or ``False`` says that one is
missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Function = TypeVar("Function", bound=Callable[..., Any])
NO_HOOKS: dict[int, Any] = {}


def has_hooks(module: nn.Module) -> bool:
    """Return whether anybody looks into a module or its parts, or changes what is in them, by hooks."""
    names = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return any(getattr(m, name, NO_HOOKS) for m in module.modules() for name in names)


def last_forward_hook(module: nn.Module) -> int | None:
    """Return the number of the forward hook that runs last, after which nothing changes what a module returns."""
    return next(reversed(module._forward_hooks), None)


# autograd

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


def backward_pass_number() -> int:
    """Return the number of the backward pass that calls this, -1 outside of one."""
    return torch._C._current_graph_task_id()


def saved_tensors_hooks_in_force() -> tuple[Pack, Unpack] | None:
    """Return the innermost hooks of ``torch.autograd.graph.saved_tensors_hooks``; None in code that is compiled."""
    if torch.compiler.is_compiling():
        return None
    return torch._C._autograd._top_saved_tensors_default_hooks(False)  # type: ignore[no-any-return, attr-defined]


@contextmanager
def without_saved_tensors_hooks(pack: Pack, unpack: Unpack) -> Iterator[None]:
    """Take away :func:`saved_tensors_hooks_in_force`, which are these, for as long as this context lasts."""
    torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def log_softmax_backward(gradient: Tensor, log_probs: Tensor, dim: int) -> Tensor:
    """Return the gradient of ``x`` from that of ``log_probs = x.log_softmax(dim)``, both of one precision."""
    return torch.ops.aten._log_softmax_backward_data(gradient, log_probs, dim, log_probs.dtype)  # type: ignore[no-any-return]


def is_transforming() -> bool:
    """Return whether a transform of ``torch.func`` (grad, vmap, jvp) is at work; False in code that is compiled."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


# attention within sentences that are end to end


@functools.cache
def varlen_attention() -> Callable[..., Any] | None:
    """Return ``torch.nn.attention.varlen.varlen_attn``, or None where PyTorch lacks it (until 2.10).

    The first call imports it, and with it PyTorch's compiler, which takes a second that few processes need.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn  # type: ignore[no-any-return]


# many tensors at once


def zero_all_(tensors: Sequence[Tensor]) -> None:
    """Fill every tensor with zeros, by one kernel on a GPU."""
    torch._foreach_zero_(list(tensors))


def add_all_(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Add each of ``others`` to its tensor in place, by one kernel on a GPU."""
    torch._foreach_add_(list(tensors), list(others))


# oneDNN's matrices in the layout that it multiplies by


def packs_matrices() -> bool:
    """Return whether this PyTorch has oneDNN, with the operators that its compiler uses for constant weights."""
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )


@functools.cache
def packs_type(dtype: torch.dtype) -> bool:
    """Return whether this processor multiplies packed matrices of a type: bf16 needs AVX-512 or newer."""
    try:
        packed_linear(torch.ones(1, 16, dtype=dtype), packed_matrix(torch.ones(16, 16, dtype=dtype)), None)
    except RuntimeError:
        return False
    return True


def packed_matrix(weight: Tensor) -> Tensor:
    """Return ``weight`` (out, in) in oneDNN's layout; only where :func:`packs_matrices`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight)  # type: ignore[no-any-return]


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x W^T + bias`` by a :func:`packed_matrix`."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")  # type: ignore[no-any-return]


# torch.compile


def not_compiled(reason: str) -> Callable[[Function], Function]:
    """Decorate what torch.compile calls as it is; where it may not (``fullgraph=True``), its error says ``reason``.

    ``torch.compiler.disable`` does the same, and imports the compiler for it, which takes a second that few need.
    """

    def decorate(function: Function) -> Function:
        vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
        return function

    return decorate


def constant_in_compiled_code(function: Function) -> Function:
    """Decorate what torch.compile calls while it compiles, and takes for a constant.

    ``torch.compiler.assume_constant_result`` does the same, and imports the compiler for it.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function

"""Every function of PyTorch that it does not declare public and the library calls; versions from 2.9 on have them.

Those that the plugin alone calls are in ``plugin/torch_private.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Function = TypeVar("Function", bound=Callable[..., Any])
NO_HOOKS: dict[int, Any] = {}


def has_hooks(module: nn.Module) -> bool:
    """Return whether anybody looks into a module or its parts, or changes what is in them, by hooks."""
    names = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return any(getattr(m, name, NO_HOOKS) for m in module.modules() for name in names)


def has_backward_hooks(module: nn.Module) -> bool:
    """Return whether anybody asks for the gradients of what a module returns, by hooks of the module."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def last_forward_hook(module: nn.Module) -> int | None:
    """Return the number of the forward hook that runs last, after which nothing changes what a module returns."""
    return next(reversed(module._forward_hooks), None)


# autograd


def times_written(x: Tensor) -> int:
    """Return how often an operation in place has changed a tensor; of one that does not count them, 0."""
    return 0 if x.is_inference() else x._version


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


def data_parallel_at_work() -> DistributedDataParallel | None:
    """Return the DistributedDataParallel whose forward pass calls this; None outside of one."""
    return DistributedDataParallel._get_active_ddp_module()


# torch.compile


def not_compiled(reason: str) -> Callable[[Function], Function]:
    """Decorate what torch.compile calls as it is; where it may not (``fullgraph=True``), its error says ``reason``.

    ``torch.compiler.disable`` does the same, and imports the compiler for it, which takes a second that few need.
    """

    def decorate(function: Function) -> Function:
        vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
        return function

    return decorate

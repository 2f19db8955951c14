"""A pass along the depth of a rewired stack: the stream, which the framework's loop does not carry, and its place."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_residuals.wirings.core.attention import Edit
from fairseq_residuals.wirings.core.base import Stream


def fed(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return what a module is fed: its first argument, ``hidden_states``, or the first tensor; None without one."""
    if args:
        return args[0]  # type: ignore[no-any-return]
    tensors = (value for value in kwargs.values() if isinstance(value, Tensor))
    return kwargs.get("hidden_states", next(tensors, None))  # type: ignore[return-value]


def first(output: Any) -> Tensor:
    """Return what a module returns, or the first of it."""
    # the compiler of PyTorch 2.9 does not know tuple | list
    return output[0] if isinstance(output, (tuple, list)) else output  # type: ignore[no-any-return]


class Seen(NamedTuple):
    """Arguments with which a wiring calls attention: queries, keys, values and edits of its inside."""

    query: Tensor
    key: Tensor
    value: Tensor
    edits: dict[str, Edit]


@dataclass
class Pass:
    """State of a pass along the depth; it is emptied above the last layer."""

    stream: Stream = field(default_factory=dict)
    below: int = -1
    """Layer that ran last; -1: none."""
    passed: Tensor | None = None
    """Output of that layer, which the one above is to be given."""
    tracked: bool = False
    """Whether gradients were to pass that output when the layer returned it."""
    records: bool = False
    """Whether the layer that runs records gradients."""
    entered: int = -1
    """Number of the sub-layer, in its layer, that runs or ran last; -1: none."""
    asked: Seen | None = None
    """What the wiring asks of the attention that runs; None where that is nothing."""
    unseen: set[str] = field(default_factory=set)
    """Places inside the sub-layer that runs, in words, that the wiring acts on and no hook has seen yet."""
    output: Tensor | None = None
    """Output of that attention, once the framework has computed it."""
    kept: Stream = field(default_factory=dict)
    """What value residuals add to the stream after that attention."""
    branch: Tensor | None = None
    """Output of the first of two modules that are one sub-layer, while the second runs."""

    def clear(self) -> None:
        """Let go of all tensors."""
        self.stream, self.asked, self.output, self.kept, self.branch, self.passed = {}, None, None, {}, None, None


class Runs(threading.local):
    """The pass of each thread; compiled code, too, finds that of the thread that calls it."""

    __slots__ = ()  # torch.compile would write to a dictionary that threads share
    now: Pass | None

    def __init__(self) -> None:
        self.now = None

    def __reduce__(self) -> tuple[type[Runs], tuple[()]]:
        """Leave passes out of copies and files: they are of a call that an error has ended, or that goes on."""
        return Runs, ()


class _Together(torch.autograd.Function):
    """Tensors as they are, the gradients of which are passed on together.

    What shards parameters (FSDP2, ZeRO) fetches those of a layer once the gradient of the layer's output is there, and
    frees them at that of its input. The stream passes the layers by: so it is tied to what they are given and return.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def together(x: Tensor, stream: Stream) -> tuple[Tensor, Stream]:
    """Tie a stream to what a layer is given, or returns, where several processes train."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized() and torch.is_grad_enabled()):
        return x, stream
    tensors, places = [x], {}
    for key, tensor in stream.items():  # no tensor twice, which torch.compile does not take
        places[key] = next((i for i, other in enumerate(tensors) if other is tensor), len(tensors))
        if places[key] == len(tensors):
            tensors.append(tensor)
    tied = _Together.apply(*tensors)
    return tied[0], {key: tied[i] for key, i in places.items()}


def differs(x: Tensor, passed: Tensor | None) -> bool:
    """Return whether a layer is given something else than was passed to it; what shards makes views and casts."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return True
    if torch.compiler.is_compiling() or not type(x) is type(passed) is Tensor:
        return False
    if x.dtype.itemsize < passed.dtype.itemsize or x.data_ptr() == passed.data_ptr():
        return False  # what adds numbers of single precision to a stream of half of it casts it up
    return x.shape != passed.shape or not torch.allclose(x, passed.to(x.dtype), rtol=2**-7, atol=1e-6)  # cast, and back

"""CUDA graphs: work of fixed shapes, recorded once and launched as a whole.

They serve where Python takes longer to launch kernels than a GPU takes to run them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fairseq_residuals.wirings.core.errors import UserError

Result = TypeVar("Result")


class Graph(Generic[Result]):
    """Work that, replayed, reads and writes the same memory as when it was recorded."""

    def __init__(self, work: Callable[[], Result], device: torch.device, pool: Any) -> None:
        """Record the work.

        Args:
            work: is run once, recorded but not computed.
            pool: of :func:`new_pool`; graphs of one pool share the memory of what they compute on the way, and so are
                not replayed in one another.

        Raises:
            RuntimeError: ``work`` waits for the device.
        """
        self.graph = torch.cuda.CUDAGraph()
        with aside(device):
            # other threads, such as those that fetch batches, may go on meanwhile
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.result = work()
            except BaseException:
                with suppress(RuntimeError):  # it is broken, and what broke it says why
                    self.graph.capture_end()
                raise
            self.graph.capture_end()

    def replay(self) -> None:
        """Compute what is in ``result`` anew."""
        self.graph.replay()


def new_pool() -> Any:
    """Return memory for graphs."""
    return torch.cuda.graph_pool_handle()


def taken_bytes(device: torch.device) -> int:
    """Return how much memory of a device PyTorch has taken, once it has given back what it can."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def device_bytes(device: torch.device) -> int:
    """Return how much memory a device has."""
    return torch.cuda.get_device_properties(device).total_memory


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return one stream for everything that is recorded: libraries make what they need for a stream once.

    Of two threads, only one may record at a time.
    """
    return torch.cuda.Stream(device)


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Queue work beside what a device does otherwise.

    It comes after what was asked for before, and before what is asked for afterwards.
    """
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)


def warm_up(work: Callable[[], object], device: torch.device) -> None:
    """Run ``work`` twice, so that all is there that kernels need, and leave random numbers as they were.

    Memory that it has freed goes back to the device: what is recorded could not use it.
    """
    with torch.random.fork_rng([device]), aside(device):
        work()
        work()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()


@contextmanager
def explained(sentence: str) -> Iterator[None]:
    """End what goes wrong while something is recorded in ``sentence``, with the reason for its "{}".

    Memory that runs out is left as it is.

    Raises:
        UserError: it went wrong.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UserError(sentence.format(str(error).strip().splitlines()[0])) from error


class AnyPadding(TorchFunctionMode):
    """Answer fairseq's models whether a mask has any entry by yes without a look, for which they would wait.

    A mask of nothing changes no number there. Whoever else asks gets the answer, of which nothing is known.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func is Tensor.any
            and len(args) == 1
            and not kwargs
            and args[0].dtype == torch.bool
            and _is_asked_by_fairseq()
        ):
            return True
        return func(*args, **(kwargs or {}))


def _is_asked_by_fairseq() -> bool:
    """Return whether the code that called PyTorch, two calls above this one, is fairseq's."""
    asking = sys._getframe(2).f_globals.get("__name__", "")
    return asking.split(".")[0] == "fairseq"

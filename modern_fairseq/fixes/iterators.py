"""Loading data in the background ends before Python does."""

import atexit
import queue
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

_stopping = threading.Event()
_consumers: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def _until_stopped(source: Iterable) -> Iterator:
    for item in source:
        if _stopping.is_set():
            return
        yield item


def _stop() -> None:
    _stopping.set()
    for consumer in list(_consumers):
        while consumer.is_alive():
            try:  # it may wait for a place in a full queue
                consumer._queue.get(timeout=0.05)  # type: ignore[attr-defined]
            except queue.Empty:
                continue


def background_ends_first(module: types.ModuleType) -> None:
    """End the thread that prepares batches before the interpreter shuts down (data/iterators.py:656-705).

    It is a daemon: when training stops inside an epoch it goes on, and Python ends it by unwinding its stack as soon
    as it wants the lock of the interpreter back.  If that happens inside PyTorch, C++ calls std::terminate: a run
    that has finished and saved ends with "terminate called without an active exception" and SIGABRT.
    Can go when Python >= 3.14, which lets such threads hang instead, is required, or when fairseq > 0.12.2 joins
    its thread.
    """

    class BackgroundConsumer(module.BackgroundConsumer):  # type: ignore[name-defined, misc]
        def __init__(self, items: Any, source: Iterable, *args: Any, **kwargs: Any) -> None:
            super().__init__(items, _until_stopped(source), *args, **kwargs)
            _consumers.add(self)

    module.BackgroundConsumer = BackgroundConsumer  # type: ignore[attr-defined]
    atexit.register(_stop)

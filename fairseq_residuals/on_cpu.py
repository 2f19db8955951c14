"""On a CPU, freed memory is kept.

fairseq's trainer (:func:`tune_training`) and its beam search do it by themselves for models of this plugin; a training
loop of your own calls :func:`keep_freed_memory`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Callable
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of mallopt(3)."""
LARGEST_INT = 2**31 - 1


@functools.cache
def keep_freed_memory() -> bool:
    """From now on this process keeps the memory that it frees for what it allocates next; whether it does.

    By default glibc maps every tensor above some size anew, at most 32 MiB, and the kernel zeroes its pages each time.
    Other C libraries are left as they are, and so is glibc where the environment has settings for it.
    """
    if platform.libc_ver()[0] != "glibc" or any(n.startswith(("MALLOC_", "GLIBC_TUNABLES")) for n in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, LARGEST_INT))


@functools.cache
def tune_training() -> None:
    """From now on fairseq's trainer does it, if it trains on a CPU."""
    from fairseq.trainer import Trainer

    Trainer.train_step = _tuned(Trainer.train_step)


def _tuned(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "cpu":
            keep_freed_memory()
        return step(self, *args, **kwargs)

    return tuned

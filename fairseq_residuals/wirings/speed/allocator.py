"""``--keep-freed-memory``: a process on Linux keeps the memory that it frees for what it allocates next.

By default glibc maps every tensor above some size anew, at most 32 MiB, and the kernel zeroes its pages each time.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""
LARGEST_INT = 2**31 - 1


@functools.cache
def keep_freed_memory() -> bool:
    """Keep freed memory in this process from now on; return whether it does.

    Other C libraries are left as they are, and so is glibc where the environment has settings for it.
    """
    if platform.libc_ver()[0] != "glibc" or any(n.startswith(("MALLOC_", "GLIBC_TUNABLES")) for n in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, LARGEST_INT))

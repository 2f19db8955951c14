"""What a process may take that reads a hostile file."""

from __future__ import annotations

import os
import resource
from pathlib import Path

SECONDS = int(os.environ.get("HOSTILE_SECONDS", "30"))
"""Of the processor, for one hostile input. 2 are enough on an idle machine; the suite asserts on no time."""
GIGABYTE = 1 << 30


def limit_memory() -> None:
    """Let this process take one more gigabyte of memory, and write files of a gigabyte."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + GIGABYTE, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (GIGABYTE, resource.RLIM_INFINITY))


def limit() -> None:
    """Bound this process in time too; a signal ends what goes on."""
    limit_memory()
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS, spent + SECONDS + 1))

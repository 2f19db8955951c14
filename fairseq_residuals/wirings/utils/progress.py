"""What a command tells while it works: lines on stderr, so that stdout has nothing but results."""

from __future__ import annotations

import sys
import time

_BEGAN = time.monotonic()


def say(line: str) -> None:
    """Print a line with the seconds since the program began."""
    print(f"{time.monotonic() - _BEGAN:5.0f} s  {line}", file=sys.stderr, flush=True)

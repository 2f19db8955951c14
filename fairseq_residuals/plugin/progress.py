"""Progress of a command: lines on stderr while it works, so that stdout has nothing but results."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BEGAN = time.monotonic()
SECONDS_BETWEEN_LINES = 10.0


def say(line: str) -> None:
    """Print a line with the seconds since the program began."""
    print(f"{time.monotonic() - _BEGAN:5.0f} s  {line}", file=sys.stderr, flush=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep from the screen what is logged of models and data while they are built; warnings and errors show."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)

r"""Work on all cores, in order, in memory that does not grow with the input.

Lines end at ``\n`` and nowhere else, as they do for Perl, awk and fairseq's own tools: Python's ``splitlines`` and
the readers of ``codecs`` would also end one at U+2028 or U+0085, and the two sides of a corpus would part.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from fairseq_residuals.plugin.progress import SECONDS_BETWEEN_LINES

BLOCK = 1 << 19
"""Bytes of text that a process gets at a time."""
AHEAD = 3
"""Items per process that are under way or wait to be written."""

In = TypeVar("In")
Out = TypeVar("Out")
LineFunction = Callable[[str], str | None]
"""A function from a line to a line, neither with its end; None drops it. It travels to other processes by pickle."""


@dataclass
class Result:
    """Result for a file: counts of its lines."""

    lines: int = 0
    """Lines written."""
    malformed: int = 0
    """Lines read that were not UTF-8; what could not be decoded became U+FFFD."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered(function: Callable[[In], Out], items: Iterable[In], workers: int) -> Iterator[Out]:
    """Yield ``map(function, items)`` of ``workers`` processes; ``items`` is read only a few ahead of the results."""
    if workers == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Out]] = deque()
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _end_with_parent) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= AHEAD * workers:
                yield waiting.popleft().result()
        # after an error the others are done, too: a pool that has canceled futures alone may wait for ever (gh-94440)
        while waiting:
            yield waiting.popleft().result()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, even by a kill: it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def blocks(file: IO[bytes], size: int = BLOCK) -> Iterator[bytes]:
    """Yield the file in pieces of about ``size`` bytes that end where a line does."""
    while block := file.read(size):
        yield block if block.endswith(b"\n") else block + file.readline()


def decode(raw: bytes) -> tuple[str, bool]:
    """Return a line as text, and whether it was not UTF-8."""
    try:
        return raw.decode("utf-8"), False
    except UnicodeDecodeError:
        return raw.decode("utf-8", errors="replace"), True


def map_block(function: LineFunction, block: bytes) -> tuple[bytes, Result]:
    """Return the lines of a block, each through ``function``."""
    written, malformed = [], 0
    for raw in block.removesuffix(b"\n").split(b"\n"):
        line, wrong = decode(raw)
        malformed += wrong
        made = function(line)
        if made is not None:
            written.append(made)
    text = "".join(f"{line}\n" for line in written)
    return text.encode("utf-8"), Result(len(written), malformed)


def map_lines(function: LineFunction, inputs: Sequence[Path], output: IO[bytes], workers: int, label: str) -> Result:
    """Write each line of ``inputs``, one file after the other, through ``function``, in order.

    A last line without an end gets one. Progress goes to stderr.
    """
    result = Result()
    for path in inputs:
        with path.open("rb") as file:
            pieces = counted(blocks(file), f"{label}, half megabytes")
            for text, part in ordered(partial(map_block, function), pieces, workers):
                output.write(text)
                result.lines += part.lines
                result.malformed += part.malformed
    return result


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, without their ends."""
    with path.open("rb") as file:
        for raw in file:
            yield decode(raw.removesuffix(b"\n"))[0]


def count_lines(path: Path) -> int:
    """Return the number of lines; what follows the last line end counts as one."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last = block
    return count + (not last.endswith(b"\n"))


def counted(items: Iterable[In], label: str) -> Iterator[In]:
    """Yield the items, and say now and then on stderr how many there were."""
    due = time.monotonic() + SECONDS_BETWEEN_LINES
    for number, item in enumerate(items):
        if time.monotonic() >= due:
            due = time.monotonic() + SECONDS_BETWEEN_LINES
            print(f"prepare: {label}: {number:,}", file=sys.stderr, flush=True)
        yield item

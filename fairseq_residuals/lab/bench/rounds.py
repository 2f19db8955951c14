"""Contestants in turn, round after round, each time in a fresh process.

What slows the machine down for a while slows all of them, memory is each one's own, and one that crashes is a line that
says so.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fairseq_residuals.lab.bench.case import Case
from fairseq_residuals.lab.bench.contestants import Contestant
from fairseq_residuals.lab.bench.products import Product
from fairseq_residuals.lab.bench.worker import REFUSED, Measured
from fairseq_residuals.wirings.utils.progress import say


class Failed(Exception):
    """A process that measured nothing; the message says why."""


@dataclass
class Line:
    """One contestant at one case, and what its processes found, a round each."""

    contestant: Contestant
    case: Case
    found: list[Measured] = field(default_factory=list)
    failure: str = ""
    """Why there is nothing, or why no further round was tried."""
    products: dict[Product, int] = field(default_factory=dict)
    """Those of one step, with how often they are made; none where they are not seen."""
    product_seconds: list[float] = field(default_factory=list)
    """What they take by ``torch.matmul``, a round each."""

    def median(self, key: str) -> float | None:
        """Return the median of what was measured each round; None if nothing was."""
        values = [measured[key] for measured in self.found if measured.get(key) is not None]
        return statistics.median(values) if values else None

    def middle(self) -> Measured:
        """Return what the round of the median step found."""
        return sorted(self.found, key=lambda measured: measured["step"])[(len(self.found) - 1) // 2]

    @property
    def flops(self) -> int | None:
        return sum(product.flops * count for product, count in self.products.items()) or None

    @property
    def limit(self) -> float | None:
        """Seconds that the products of a step take by ``torch.matmul``."""
        return statistics.median(self.product_seconds) if self.product_seconds else None


def measure(lines: Sequence[Line], mode: str, rounds: int, timeout: float, limit: bool = True) -> Iterator[int]:
    """Fill in ``lines``, which are of one device, and give the number of every round when it is over.

    Args:
        mode: of :data:`fairseq_residuals.lab.bench.worker.MODES`.
        timeout: seconds that a process may take.
        limit: whether ``torch.matmul`` is timed too.
    """
    for number in range(1, rounds + 1):
        for line in lines:
            if line.failure:
                continue
            say(f"round {number} of {rounds}: {line.contestant.name}, {line.case}")
            request = {"contestant": asdict(line.contestant), "case": asdict(line.case)}
            try:
                measured = work(mode, request, timeout, line.contestant.environment)
            except Failed as failure:
                line.failure = str(failure)
                say(f"{line.contestant.name}, {line.case}: {failure}")
                continue
            line.products = {Product(*product): count for product, count in measured.pop("products")}
            line.found.append(measured)
        if limit:
            _measure_products(lines, timeout)
        yield number


def _measure_products(lines: Sequence[Line], timeout: float) -> None:
    made = [line for line in lines if line.products and not line.failure]
    different = list(dict.fromkeys(product for line in made for product in line.products))
    if not different:
        return
    say(f"torch.matmul at {len(different)} shapes")
    try:
        seconds = work("products", {"products": different, "device": made[0].case.device}, timeout)["seconds"]
    except Failed as failure:
        say(f"torch.matmul was not measured: {failure}")
        return
    taken = dict(zip(different, seconds, strict=True))
    for line in made:
        line.product_seconds.append(sum(taken[product] * count for product, count in line.products.items()))


def work(
    mode: str, request: Mapping[str, Any], timeout: float, environment: Mapping[str, str] | None = None
) -> Measured:
    """Do one thing in a process of its own.

    Raises:
        Failed: it refused, crashed, or did not end in time.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "fairseq_residuals.lab.bench.worker"],
            input=json.dumps({"mode": mode, **request}),
            capture_output=True,
            text=True,
            env={**os.environ, **(environment or {})},
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not done within {timeout:g} s") from None
    if ended.returncode == 0:
        return json.loads(ended.stdout.splitlines()[-1])
    last = next((line for line in reversed(ended.stderr.splitlines()) if line.strip()), "")
    if ended.returncode == REFUSED:
        raise Failed(f"not measured: {last}")
    if ended.returncode == -signal.SIGKILL:
        raise Failed("out of memory, or killed by hand (SIGKILL)")
    if "OutOfMemoryError" in last or "MemoryError" in last or "can't allocate memory" in last:
        raise Failed(f"out of memory: {last}")
    how = f"status {ended.returncode}" if ended.returncode > 0 else signal.Signals(-ended.returncode).name
    raise Failed(f"crashed ({how}): {last}")

"""The process of one entry, ``python -m fairseq_residuals.lab.bench.worker``.

JSON on stdin says what it is to do; its last line is its result as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fairseq_residuals.lab.bench import library as stacks
from fairseq_residuals.lab.bench.entries import Case, Entry
from fairseq_residuals.lab.bench.fairseq_models import Training, parse
from fairseq_residuals.lab.compare.entries import load
from fairseq_residuals.wirings.core.errors import UserError

Measured = dict[str, Any]
OVERFLOWS = 20
"""Steps that fp16 may take to find a loss scale."""
REFUSED = 3
"""Exit status where there is nothing to measure, and the last line of stdout says why."""


def main() -> int:
    asked = json.loads(sys.stdin.read())
    # if memory runs out, the kernel is to end this process and no other
    Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        print(json.dumps(answer(**asked)))
    except UserError as error:
        print(error)
        return REFUSED
    return 0


def request(mode: str, entry: Entry, case: Case) -> dict[str, Any]:
    """Return what :func:`answer` is to be called with, as JSON can have it."""
    files = [str(path) for path in entry.files]
    return {"mode": mode, "name": entry.name, "flags": entry.flags, "files": files, "case": asdict(case)}


def answer(mode: str, name: str, flags: Sequence[str], files: Sequence[str], case: Mapping[str, Any]) -> Measured:
    """Measure an entry at a case.

    Raises:
        UserError: there is nothing to measure.
    """
    for path in files:
        load(Path(path), wirings=False)
    return MODES[mode](replace(PARSE[mode](name), flags=tuple(flags)), Case(**case))


def train(entry: Entry, case: Case) -> Measured:
    """Time steps of fairseq's training."""
    return _timed(Training(entry.network(entry, case), case), case)


def library(entry: Entry, case: Case) -> Measured:
    """Time steps of a stack without fairseq."""
    torch.manual_seed(case.seed)
    return _timed(stacks.Training(entry.network(entry, case), case, tuple(entry.flags)), case)


def _timed(training: Training | stacks.Training, case: Case) -> Measured:
    """Time steps; the phases that are reported are those of one step, the median by its whole time."""
    device = torch.device(case.device)
    for _ in range(1 + OVERFLOWS):
        if _step(training, device) is not None:
            break
    for _ in range(case.warmup - 1):
        _step(training, device)
    timed = [taken for _ in range(case.steps) if (taken := _step(training, device)) is not None]
    if len(timed) < case.steps:
        raise UserError("the gradients overflow in fp16")
    step, forward, backward, optimizer = sorted(timed)[(len(timed) - 1) // 2]
    return {
        "step": step,
        "forward": forward,
        "backward": backward,
        "optimizer": optimizer,
        "tokens": case.target_tokens,
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "peak_bytes": _peak(device),
    }


def _step(training: Training | stacks.Training, device: torch.device) -> tuple[float, float, float, float] | None:
    """Return seconds of the step, of its forward and backward pass and of the optimizer; None where fp16 overflowed."""
    began = now(device)
    loss = training.forward()
    lost = now(device)
    training.backward(loss)
    back = now(device)
    try:
        training.update()
    except OverflowError:
        return None
    ended = now(device)
    return ended - began, lost - began, back - lost, ended - back


def generate(entry: Entry, case: Case) -> Measured:
    """Time searches; the median."""
    device = torch.device(case.device)
    assert entry.search is not None
    run = entry.search(entry, case)
    for _ in range(case.warmup):
        run()
    timed = []
    for _ in range(case.steps):
        began = now(device)
        tokens = run()
        timed.append(now(device) - began)
    return {"step": sorted(timed)[(len(timed) - 1) // 2], "tokens": tokens, "peak_bytes": _peak(device)}


MODES: dict[str, Callable[[Entry, Case], Measured]] = {"train": train, "generate": generate, "library": library}
PARSE: dict[str, Callable[[str], Entry]] = {"train": parse, "generate": parse, "library": stacks.parse}
"""Functions that find an entry by its name."""


def _peak(device: torch.device) -> int | None:
    """Return the most bytes that this process had in memory; on a GPU those of PyTorch's tensors, None without any."""
    if device.type == "cuda":
        # of libraries that do not allocate by PyTorch, nothing is known
        return torch.cuda.max_memory_allocated(device) or None
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def now(device: torch.device) -> float:
    """Return the clock, when ``device`` has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # at once: to free a large model takes seconds

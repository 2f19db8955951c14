"""The process of one contestant, ``python -m fairseq_residuals.lab.bench.worker``.

JSON on stdin says what it is to do; its last line is its result as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from fairseq_residuals.lab.bench.case import Case
from fairseq_residuals.lab.bench.contestants import Contestant
from fairseq_residuals.lab.bench.fairseq_models import Training
from fairseq_residuals.lab.bench.products import Product, Recorder, now, seconds_of
from fairseq_residuals.wirings.core.errors import UserError

Measured = dict[str, Any]
OVERFLOWS = 20
"""Steps that fp16 may take to find a loss scale."""
REFUSED = 3
"""Exit status where there is nothing to measure, and the last line of stderr says why."""


def main() -> int:
    request = json.loads(sys.stdin.read())
    # if memory runs out, the kernel is to end this process and no other
    Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        print(json.dumps(MODES[request.pop("mode")](**request)))
    except UserError as error:
        print(error, file=sys.stderr)
        return REFUSED
    return 0


def train(contestant: Mapping[str, Any], case: Mapping[str, Any]) -> Measured:
    """Time steps; the phases that are reported are those of one step, the median by its whole time."""
    who, what = Contestant(**contestant), Case(**case)
    make = _maker(who.network, f"{who.name} does not train")
    device = torch.device(what.device)
    before = resident()
    training = Training(make(who, what), what)
    for _ in range(1 + OVERFLOWS):
        if _step(training, device) is not None:
            break
    for _ in range(what.warmup - 1):
        _step(training, device)
    timed = [taken for _ in range(what.steps) if (taken := _step(training, device)) is not None]
    if len(timed) < what.steps:
        raise UserError("the gradients overflow in fp16")
    memory = _memory(before, device)
    seen = _products_of_a_step(training, device)
    step, forward, backward, optimizer = sorted(timed)[(len(timed) - 1) // 2]
    parameters = list(training.model.parameters())
    return {
        "step": step,
        "forward": forward,
        "backward": backward,
        "optimizer": optimizer,
        "tokens": what.target_tokens,
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.nbytes for p in parameters),
        "products": seen,
    } | memory


def _products_of_a_step(training: Training, device: torch.device) -> list[tuple[Product, int]]:
    training.leave_graphs()
    try:
        with Recorder() as recorder:
            _step(training, device)
    except torch.OutOfMemoryError:  # graphs keep their memory, and this step needs as much again
        return []
    return _products(recorder)


def _step(training: Training, device: torch.device) -> tuple[float, float, float, float] | None:
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


def generate(contestant: Mapping[str, Any], case: Mapping[str, Any]) -> Measured:
    """Time searches; the median."""
    who, what = Contestant(**contestant), Case(**case)
    make = _maker(who.search, f"{who.name} has no beam search")
    device = torch.device(what.device)
    before = resident()
    run: Callable[[], int] = make(who, what)
    for _ in range(what.warmup):
        run()
    timed = []
    for _ in range(what.steps):
        began = now(device)
        tokens = run()
        timed.append(now(device) - began)
    memory = _memory(before, device)
    with Recorder() as recorder:
        run()
    step = sorted(timed)[(len(timed) - 1) // 2]
    return {"step": step, "tokens": tokens, "products": _products(recorder)} | memory


def products(products: list[list[Any]], device: str) -> Measured:
    """Time torch.matmul."""
    return {"seconds": seconds_of((Product(*product) for product in products), torch.device(device))}


MODES: dict[str, Callable[..., Measured]] = {"train": train, "generate": generate, "products": products}


def _products(recorder: Recorder) -> list[tuple[Product, int]]:
    return [*recorder.counts.items()] if recorder.complete else []


def _memory(before: int, device: torch.device) -> Measured:
    """Return the memory that was taken until now: a recorded step takes more of it."""
    gpu = device.type == "cuda"
    return {
        # of libraries that do not allocate by PyTorch, nothing is known
        "peak_bytes": (torch.cuda.max_memory_allocated(device) or None) if gpu else resident("VmHWM"),
        "bytes_before": 0 if gpu else before,
    }


def resident(which: str = "VmRSS") -> int:
    """Return bytes of this process in memory; VmHWM: the most there have been."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def _maker(reference: str, otherwise: str) -> Callable[[Contestant, Case], Any]:
    """Return the function that makes a contestant's network, from "module:function".

    Raises:
        UserError: ``reference`` is empty, or names nothing that can be imported.
    """
    if not reference:
        raise UserError(otherwise)
    module, _, function = reference.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{reference} cannot be imported: {error}") from error


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # at once: to free a large model takes seconds

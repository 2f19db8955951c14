"""What each entry is before it trains: its cost on this machine, where it starts, and whether it looks ahead.

An entry chooses how sub-layers read and write. Data, batches, order, sub-layers and depth are those of the comparison
and cannot differ; ``runs.csv`` has digests of them, by which results of several machines are checked.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from fairseq import tasks, utils
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from fairseq_residuals.lab.compare.cells import Cell, Comparison
from fairseq_residuals.lab.compare.entries import Entry
from fairseq_residuals.lab.look.probes import stacks
from fairseq_residuals.lab.recipes.runner import THREADS
from fairseq_residuals.wirings import admin_measurement
from fairseq_residuals.wirings.core.errors import UserError

ROUNDS = 5
"""Times that each entry's pass is timed, in turns; the least counts, as other programs only ever slow one down."""
CLOSE = 1e-4
"""Difference of logits that rounding explains."""
Sample = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """What an entry is before the first update."""

    parameters: int
    flops: int
    """Operations of one pass, forward and backward."""
    seconds: float
    """Time of one pass, forward and backward; on a CPU, of one core."""
    memory_mib: float
    """Size of what a pass keeps for the backward pass."""
    starts_as_baseline: bool
    """Whether its logits are the baseline's, with the same seed."""
    gradient: float
    """Norm of the whole gradient."""
    bottom_to_top: float
    """Gradient norm of the lowest layer of the decoder, as a multiple of the highest one's."""


def look(comparison: Comparison, entries: list[Entry], say: Callable[[str], None], cores: int) -> dict[str, Start]:
    """Return what each entry is at the start, by name; the first is the baseline.

    Args:
        say: is told what goes on.
        cores: that runs keep busy at a time.

    Raises:
        UserError: an entry cannot be built, or one position depends on a later one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if comparison.machine.gpus == 0 else threads)
    try:
        return _look(comparison, entries, say, cores)
    finally:
        torch.set_num_threads(threads)


def _look(comparison: Comparison, entries: list[Entry], say: Callable[[str], None], cores: int) -> dict[str, Start]:
    config = comparison.job(Cell(entries[0], 1.0, 1)).config
    device = torch.device("cuda" if comparison.machine.gpus else "cpu")
    task = tasks.setup_task(config.task)
    task.load_dataset("train")
    batches = task.get_batch_iterator(
        task.dataset("train"),
        max_tokens=config.dataset.max_tokens,
        max_positions=task.max_positions(),
        ignore_invalid_inputs=True,
        seed=1,
    ).next_epoch_itr(shuffle=True)
    sample = utils.apply_to_sample(lambda t: t.to(device), next(batches))
    criterion = task.build_criterion(config.criterion)
    starts: dict[str, Start] = {}
    models: dict[str, nn.Module] = {}
    reference: Tensor | None = None
    for entry in entries:
        say(f"looking at {entry.name} before it trains")
        torch.manual_seed(1)
        model = task.build_model(comparison.job(Cell(entry, 1.0, 1)).config.model).to(device)
        _profile(model, sample)
        logits = _logits(model, sample)
        reference = logits if reference is None else reference
        if not _is_causal(model, sample, logits):
            raise UserError(f"{entry.name} looks ahead: its output at a position depends on later tokens")
        same = torch.allclose(logits, reference, rtol=CLOSE, atol=CLOSE * float(reference.abs().max()))
        starts[entry.name] = _measure(model, criterion, sample, same)
        models[entry.name] = model
    say("timing passes")
    with _busy(cores - 1):
        times = [{name: _time(model, criterion, sample) for name, model in models.items()} for _ in range(ROUNDS)]
    return {name: replace(start, seconds=min(t[name] for t in times)) for name, start in starts.items()}


@contextmanager
def _busy(cores: int) -> Iterator[None]:
    """Keep other cores busy with products of matrices, as runs side by side do: they share caches and memory."""
    code = "import numpy; a = numpy.ones((1024, 1024), 'f'); print(flush=True)\nwhile True: a @ a"
    own: dict[str, Any] = {"stdout": subprocess.PIPE, "env": os.environ | dict.fromkeys(THREADS, "1")}
    others = [subprocess.Popen([sys.executable, "-c", code], **own) for _ in range(cores)]
    try:
        for pipe in filter(None, (other.stdout for other in others)):
            pipe.readline()  # it has begun
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()


def _profile(model: nn.Module, sample: Sample) -> None:
    """Give Admin the scales that it otherwise measures when training begins."""
    if modules := admin_measurement.unprofiled(model):
        admin_measurement.start_from(modules, admin_measurement.measure(model, lambda: model(**sample["net_input"])))


@torch.no_grad()
def _logits(model: nn.Module, sample: Sample) -> Tensor:
    logits: Tensor = model.eval()(**sample["net_input"])[0]
    return logits


def _is_causal(model: nn.Module, sample: Sample, logits: Tensor) -> bool:
    """Return whether the first half of the positions is the same when the tokens of the second half are reversed."""
    name = "prev_output_tokens" if "prev_output_tokens" in sample["net_input"] else "src_tokens"
    tokens = sample["net_input"][name]
    half = tokens.shape[1] // 2
    other = torch.cat([tokens[:, :half], tokens[:, half:].roll(1, 0).flip(1)], 1)
    changed = _logits(model, sample | {"net_input": sample["net_input"] | {name: other}})
    return torch.allclose(changed[:, :half], logits[:, :half], rtol=CLOSE, atol=CLOSE * float(logits.abs().max()))


def _measure(model: nn.Module, criterion: Any, sample: Sample, same: bool) -> Start:
    model.train()
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        loss, size, _ = criterion(model, sample)
        (loss / size).backward()
    decoder = stacks(model)[-1]
    layers = [_norm(decoder[i]) for i in range(len(decoder))]
    gradient = _norm(model)
    return Start(
        sum(p.numel() for p in model.parameters()),
        counter.get_total_flops(),
        math.inf,
        sum(kept.values()) / 2**20,
        same,
        gradient,
        layers[0] / layers[-1] if layers[-1] else math.inf,
    )


def _time(model: nn.Module, criterion: Any, sample: Sample) -> float:
    """Return the seconds of one pass, on a CPU those of its core."""
    on_gpu = next(model.parameters()).is_cuda
    clock = time.perf_counter if on_gpu else time.thread_time
    began = clock()
    criterion(model, sample)[0].backward()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - began


def _norm(module: nn.Module) -> float:
    gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    return float(torch.cat(gradients).norm()) if gradients else 0.0

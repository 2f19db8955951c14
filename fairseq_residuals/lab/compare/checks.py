"""Properties of each entry before it trains: its cost on this machine, where it starts, and whether it looks ahead.

An entry chooses how sub-layers read and write. Data, batches, order, sub-layers and depth are those of the comparison
and cannot differ; ``runs.csv`` has digests of them, by which results of several machines are checked.
"""

from __future__ import annotations

import copy
import math
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from fairseq import tasks, utils
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from fairseq_residuals.lab.bench.entries import PRECISIONS
from fairseq_residuals.lab.compare.cells import Cell, Comparison
from fairseq_residuals.lab.compare.entries import Entry
from fairseq_residuals.lab.compare.tasks import Rung
from fairseq_residuals.lab.look.probes import gradient_norm, kept_for_backward, stacks
from fairseq_residuals.lab.recipes.runner import THREADS
from fairseq_residuals.lab.utils.torch_private import FLOPS_ON_CPU
from fairseq_residuals.plugin.progress import say
from fairseq_residuals.wirings import admin_measurement
from fairseq_residuals.wirings.core.errors import UserError

ROUNDS = 20
"""Times that each entry's pass is timed, in turns."""
FEW_ROUNDS = 5
ENOUGH_SECONDS = 60.0
"""Time after which few rounds are enough."""
FEW = 4
"""Sentences on which an entry is tried for what its outputs depend on."""
CLOSE = 1e-4
"""Difference of logits that rounding explains."""
STARTING = 8.0
"""Seconds in which fairseq starts and ends."""
VALIDATING = 1.15
"""Time of a run as a multiple of its passes': the optimizer and validations take some as well."""
Sample = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """Properties of an entry before the first update."""

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
    batches: int
    """Batches of the training data, a pass each."""
    updates: int
    """Updates that read the training data once."""


def seconds_of_a_run(rung: Rung, start: Start) -> float:
    """Return what one run takes by the pass that was timed."""
    return STARTING + VALIDATING * rung.updates / start.updates * start.batches * start.seconds


def look(comparison: Comparison, entries: Sequence[Entry], cores: int, most_rounds: int = ROUNDS) -> dict[str, Start]:
    """Return what each entry is at the start, by name; the first is the baseline.

    Args:
        cores: that runs keep busy at a time.
        most_rounds: in which passes are timed.

    Raises:
        UserError: an entry cannot be built or trained, or an output depends on what it must not depend on.
    """
    config = comparison.any_job.config
    device = torch.device("cuda" if comparison.gpus else "cpu")
    task = tasks.setup_task(config.task)
    task.load_dataset("train")
    batches = task.get_batch_iterator(
        task.dataset("train"),
        max_tokens=config.dataset.max_tokens,
        max_sentences=config.dataset.batch_size,
        required_batch_size_multiple=config.dataset.required_batch_size_multiple,
        max_positions=task.max_positions(),
        ignore_invalid_inputs=True,
        seed=1,
    ).next_epoch_itr(shuffle=True)
    batch = next(batch for batch in batches if batch["target"].size(1) > 1)  # others are of empty lines
    sample = utils.apply_to_sample(lambda t: t.to(device), batch)
    epoch = len(batches), math.ceil(len(batches) / config.optimization.update_freq[0])
    criterion = task.build_criterion(config.criterion)
    starts: dict[str, Start] = {}
    models: dict[str, nn.Module] = {}
    reference: Tensor | None = None
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if comparison.gpus else 1)
    try:
        for entry in entries:
            say(f"looking at {entry.name} before it trains")
            torch.manual_seed(1)
            try:
                model = task.build_model(comparison.job(Cell(entry, 1.0, 1)).config.model).to(device)
                admin_measurement.profile(model, partial(model, **sample["net_input"]))
                logits = _logits(model, sample)
                reference = logits if reference is None else reference
                _check(model, sample, logits, task.target_dictionary.pad())
                starts[entry.name] = _measure(model, criterion, sample, _close(logits, reference), *epoch)
                _time(model, criterion, sample)  # _measure lets tensors be changed in place
            except UserError as error:
                raise UserError(f"{entry.name}: {error}") from error
            except Exception as error:  # whatever a user's wiring raises
                at = traceback.extract_tb(error.__traceback__)[-1]
                told = f"{type(error).__name__}: {error}; {at.filename}, line {at.lineno}"
                raise UserError(f"{entry.name} fails in its first pass: {told}") from error
            models[entry.name] = model.to(PRECISIONS[comparison.trained_in])
        say("timing passes")
        with _busy(cores - 1):
            timers = {name: partial(_time, model, criterion, sample) for name, model in models.items()}
            seconds = seconds_in_turns(timers, most_rounds)
    finally:
        torch.set_num_threads(threads)
    return {name: replace(start, seconds=seconds[name]) for name, start in starts.items()}


def seconds_in_turns(timers: Mapping[str, Callable[[], float]], most_rounds: int = ROUNDS) -> dict[str, float]:
    """Return the seconds of each pass; the first is the baseline's.

    Those of the others are the baseline's, times the median of their ratios within a round: what slows a machine down
    for some seconds slows a whole round. On two shared cores, these differed by up to 5% from call to call, and ratios
    of the least of five by up to a quarter.
    """
    rounds: list[dict[str, float]] = []
    began = time.monotonic()
    while len(rounds) < FEW_ROUNDS or (len(rounds) < most_rounds and time.monotonic() - began < ENOUGH_SECONDS):
        rounds.append({name: timer() for name, timer in timers.items()})
    baseline = next(iter(timers))
    usual = statistics.median(times[baseline] for times in rounds)
    return {name: usual * statistics.median(times[name] / times[baseline] for times in rounds) for name in timers}


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


@torch.no_grad()
def _logits(model: nn.Module, sample: Sample, training: bool = False) -> Tensor:
    """Return what a copy computes, so that no state is left behind; in training, dropout is always the same."""
    if training:
        torch.manual_seed(1)
    logits: Tensor = copy.deepcopy(model).train(training)(**sample["net_input"])[0]
    return logits


def _close(logits: Tensor, reference: Tensor) -> bool:
    largest = float(reference.nan_to_num(0.0, 0.0, 0.0).abs().max())
    return torch.allclose(logits, reference, rtol=CLOSE, atol=CLOSE * largest, equal_nan=True)


def _check(model: nn.Module, sample: Sample, logits: Tensor, padding: int) -> None:
    """Refuse what has no numbers, or outputs that depend on later tokens, chance, padding or other sentences.

    Args:
        logits: of the model in evaluation.
    """
    if not (logits.isfinite().all() and _logits(model, sample, training=True).isfinite().all()):
        raise UserError("its outputs are no numbers before it trains")
    sample = sample | {"net_input": {name: tensor[:FEW] for name, tensor in sample["net_input"].items()}}
    # copies of one sentence, in the shape of the sample: so dropout in training is the same
    copies = sample | {"net_input": {name: tensor[[0] * len(tensor)] for name, tensor in sample["net_input"].items()}}
    model = _exact(model, sample)
    for tried in (model, _moved(model)):  # what starts at 0 may look ahead later
        logits, trained = _logits(tried, sample), _logits(tried, sample, training=True)
        if not _is_causal(tried, sample, logits) or not _is_causal(tried, sample, trained, training=True):
            raise UserError("it looks ahead: its output at a position depends on later tokens, or on chance")
        among_copies = _logits(tried, copies, training=True)
        if not _is_alone(tried, sample, logits, padding) or not _close(among_copies[0], trained[0]):
            raise UserError("it mixes a batch: a sentence's output depends on other sentences, or on padding")


def _is_causal(model: nn.Module, sample: Sample, logits: Tensor, training: bool = False) -> bool:
    """Return whether the first half of the positions is the same when the tokens of the second half are reversed."""
    name = "prev_output_tokens" if "prev_output_tokens" in sample["net_input"] else "src_tokens"
    tokens = sample["net_input"][name]
    half = tokens.shape[1] // 2
    other = torch.cat([tokens[:, :half], tokens[:, half:].roll(1, 0).flip(1)], 1)
    changed = _logits(model, sample | {"net_input": sample["net_input"] | {name: other}}, training)
    return _close(changed[:, :half], logits[:, :half])


def _is_alone(model: nn.Module, sample: Sample, logits: Tensor, padding: int) -> bool:
    """Return whether half of a sentence has the same outputs without what follows, without others, and with padding."""
    own = {name: tensor[:1] for name, tensor in sample["net_input"].items()}
    name = "prev_output_tokens" if "prev_output_tokens" in own else "src_tokens"
    own[name] = own[name][:, : own[name].shape[1] // 2]
    if name == "prev_output_tokens":
        own["src_tokens"] = functional.pad(own["src_tokens"], (3, 0), value=padding)
    return _close(_logits(model, sample | {"net_input": own})[0], logits[0, : own[name].shape[1]])


def _exact(model: nn.Module, sample: Sample) -> nn.Module:
    """Return a copy in double precision, if it runs so: many layers without norms make much of rounding."""
    double = copy.deepcopy(model).double()
    try:
        _logits(double, sample)
    except RuntimeError:  # a user's wiring may have made a tensor of one type
        return model
    return double


@torch.no_grad()
def _moved(model: nn.Module) -> nn.Module:
    """Return a copy whose parameters have left where they start."""
    copied, noise = copy.deepcopy(model), torch.Generator().manual_seed(1)
    for parameter in copied.parameters():
        parameter.add_(0.05 * torch.randn(parameter.shape, generator=noise).to(parameter))
    return copied


def _measure(model: nn.Module, criterion: Any, sample: Sample, same: bool, batches: int, updates: int) -> Start:
    model.train()
    with FlopCounterMode(display=False, custom_mapping=FLOPS_ON_CPU) as counter, kept_for_backward() as kept:
        loss, size, _ = criterion(model, sample)
        (loss / size).backward()
    decoder = stacks(model)[-1]
    bottom, top = (gradient_norm(decoder[i]) for i in (0, -1))
    return Start(
        parameters=sum(p.numel() for p in model.parameters()),
        flops=counter.get_total_flops(),
        seconds=math.inf,
        memory_mib=sum(kept.values()) / 2**20,
        starts_as_baseline=same,
        gradient=gradient_norm(model),
        bottom_to_top=bottom / top if top else math.inf,
        batches=batches,
        updates=updates,
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

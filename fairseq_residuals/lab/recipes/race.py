"""Small models trained side by side, in this process, with fairseq's criterion, optimizer and schedules."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from fairseq import options, utils
from fairseq.criterions import build_criterion
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler

from fairseq_residuals.lab.look.models import ModelSource, build, device_of, label_and_wiring, sources
from fairseq_residuals.lab.look.training_data import Corpus, Sample, SyntheticSequences, count_targets
from fairseq_residuals.lab.recipes.losses import final_loss, is_trained, unigram_loss
from fairseq_residuals.wirings import admin_measurement
from fairseq_residuals.wirings.core.errors import UserError

POINTS = 40
"""Of a curve."""
SCHEDULES = ("inverse_sqrt", "constant", "linear")
Tell = Callable[[int, float], None]
"""Is told updates and the loss since the last time."""


@dataclass(frozen=True)
class RaceRun:
    """One model to train."""

    source: ModelSource
    lr: float
    warmup: int
    seed: int

    @property
    def name(self) -> str:
        """For progress."""
        variant = " ".join([self.source.arch.removeprefix("transformer_"), *self.source.flags[1::2]])
        return f"{variant}, lr {self.lr:g}, warm-up {self.warmup}, seed {self.seed}"


@dataclass
class RaceResult:
    """What came of a run. Losses are negative log-likelihoods in bits per target token."""

    run: RaceRun
    label: str
    wiring: str
    parameters: int
    unigram: float
    """The loss of a model that knows how frequent each token is."""
    train: list[tuple[int, float]] = field(default_factory=list)
    """Updates, and the mean since the point before."""
    valid: list[tuple[int, float]] = field(default_factory=list)
    diverged_at: int | None = None
    """At which update the loss or the gradient was no longer a number."""
    seconds: float = 0.0

    @property
    def final(self) -> float:
        """The training loss; nan if the run diverged."""
        return math.nan if self.diverged_at is not None else final_loss([loss for _, loss in self.train])

    @property
    def trained(self) -> bool:
        return is_trained(self.final, self.unigram)


def runs_of(args: Namespace) -> list[RaceRun]:
    """Return every model with every learning rate and warm-up, seed after seed.

    Raises:
        UserError: nothing of the kind can be raced.
    """
    for flag, least in {"updates": 1, "seeds": 1, "jobs": 1, "tokens": 2}.items():
        if getattr(args, flag) < least:
            raise UserError(f"--{flag} must be at least {least}, not {getattr(args, flag)}")
    if min(args.warmup) < 0 or min(args.lr) <= 0:
        raise UserError("--warmup must be 0 or more updates, and --lr more than 0")
    if args.checkpoint or args.training or args.precision != "fp32":
        raise UserError(
            "--checkpoint, --training and --precision have no meaning here: a race trains new models in fp32"
        )
    chosen = sources(args)
    if any(source.task != "translation" for source in chosen):
        raise UserError("a race is for encoder-decoder models: choose --task translation and its architectures")
    seeds = range(args.seed, args.seed + args.seeds)
    grid = itertools.product(seeds, args.lr, args.warmup, chosen)
    return [RaceRun(source, lr, warmup, seed) for seed, lr, warmup, source in grid]


def train(run: RaceRun, args: Namespace, tell: Tell) -> RaceResult:
    """Train one model.

    Raises:
        UserError: it cannot be built, or there is no such data.
    """
    began = time.monotonic()
    device = device_of(args.device)
    model, settings, task = build(run.source, Namespace(**vars(args) | {"seed": run.seed}))
    model = model.to(device)
    data = Corpus(args, task, model) if args.data else SyntheticSequences(args, task.target_dictionary)
    config = _config(run, args)
    criterion = build_criterion(config.criterion, task)
    move = partial(_move, device=device)
    valid = [move(sample) for sample in data.valid()]
    stream = map(move, data.train(run.seed))
    result = RaceResult(
        run,
        *label_and_wiring(settings),
        sum(p.numel() for p in model.parameters()),
        unigram_loss(count_targets(valid, task.target_dictionary.pad())),
    )
    admin_measurement.take_from_files(model)
    if admin_measurement.unprofiled(model):
        first = next(stream)["net_input"]
        admin_measurement.start_from(
            admin_measurement.unprofiled(model), admin_measurement.measure(model, lambda: model(**first))
        )
    optimizer = build_optimizer(config.optimizer, list(model.parameters()))
    schedule = build_lr_scheduler(config.lr_scheduler, optimizer)
    torch.manual_seed(run.seed)
    every = math.ceil(args.updates / POINTS)
    since: list[float] = []
    for update in range(1, args.updates + 1):
        schedule.step_update(update - 1)
        loss = _step(model, criterion, optimizer, next(stream), args.clip_norm)
        if not math.isfinite(loss):
            result.diverged_at = update
            break
        since.append(loss)
        if update % every == 0 or update == args.updates:
            result.train.append((update, statistics.fmean(since)))
            tell(update, result.train[-1][1])
            since = []
        if update % (every * (POINTS // 8)) == 0 or update == args.updates:
            result.valid.append((update, _validate(model, criterion, valid)))
    result.seconds = time.monotonic() - began
    return result


def _config(run: RaceRun, args: Namespace) -> Any:
    """Return fairseq's configuration of criterion, optimizer and schedule."""
    schedules: dict[str, list[str]] = {
        "constant": ["fixed", f"--warmup-updates={run.warmup}"],
        "linear": ["polynomial_decay", f"--warmup-updates={run.warmup}", f"--total-num-update={args.updates}"],
        "inverse_sqrt": ["inverse_sqrt", f"--warmup-updates={run.warmup}"],
    }
    if args.schedule == "inverse_sqrt" and not run.warmup:
        # fairseq's schedule divides by the warm-up; this one begins at lr and falls as it does
        schedules["inverse_sqrt"] = ["inverse_sqrt_nowarmup", f"--decay-period={args.decay_period}"]
    flags = ["--task=translation", "--arch", run.source.arch, "--optimizer=adam", "--adam-betas=(0.9, 0.98)"]
    flags += [f"--lr={run.lr}", "--lr-scheduler", *schedules[args.schedule], f"--weight-decay={args.weight_decay}"]
    flags += ["--criterion=label_smoothed_cross_entropy", f"--label-smoothing={args.label_smoothing}"]
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, ["synthetic", *flags]))


def _move(sample: Sample, device: torch.device) -> Sample:
    return utils.apply_to_sample(lambda t: t.to(device), sample)


def _step(model: Any, criterion: Any, optimizer: Any, sample: Sample, clip_norm: float) -> float:
    """Take one step and return its loss in bits per token; nothing changes if loss or gradient is not finite."""
    model.train()
    loss, size, log = criterion(model, sample)
    optimizer.zero_grad()
    optimizer.backward(loss)
    optimizer.multiply_grads(1.0 / size)
    norm = optimizer.clip_grad_norm(clip_norm)
    if not (math.isfinite(float(norm)) and math.isfinite(loss.item())):
        return math.nan
    optimizer.step()
    return log["nll_loss"].item() / log["ntokens"] / math.log(2)


@torch.no_grad()
def _validate(model: Any, criterion: Any, samples: Sequence[Sample]) -> float:
    model.eval()
    logs = [criterion(model, sample)[2] for sample in samples]
    return sum(log["nll_loss"].item() for log in logs) / sum(log["ntokens"] for log in logs) / math.log(2)

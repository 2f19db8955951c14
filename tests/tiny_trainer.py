"""fairseq's own trainer around a tiny model, in this process: configured by flags, fed batches of ``tiny``."""

from __future__ import annotations

import copy
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fairseq import options
from fairseq.criterions import build_criterion
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.models import build_model
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from tiny import FAIRSEQ_TASKS, PAD, PREFIX, batch, dimensions, make_dictionary, make_task, target_tokens

from fairseq_residuals.plugin.models import extensions

SGD = ("--optimizer", "sgd", "--lr", "0.1", "--lr-scheduler", "fixed")


class Task(FairseqTask):
    """A task without data."""

    source_dictionary = target_dictionary = make_dictionary()
    args = make_task().args


@cache
def _parsed(flags: tuple[str, ...], variant: str, task: str, *_extensions: extensions.Extension) -> Namespace:
    model = ["--task", FAIRSEQ_TASKS[task], "--arch", f"{PREFIX[task]}_{variant}", *dimensions(task)]
    argv = ["data", "--cpu", "--criterion", "cross_entropy", *model, *flags]
    args = options.parse_args_and_arch(options.get_training_parser(), argv)
    args.input_feat_per_channel, args.input_channels = 8, 1  # what the task tells a model of speech
    return args


def _arguments(flags: tuple[str, ...], variant: str, task: str) -> Namespace:
    # fairseq makes three parsers to read one command line, and two trainers of a test often have the same
    return copy.deepcopy(_parsed(flags, variant, task, *extensions.EXTENSIONS.values()))


@cache
def _settings(flags: tuple[str, ...], variant: str, task: str) -> Any:
    return convert_namespace_to_omegaconf(_arguments(flags, variant, task))


def make_config(*flags: str, variant: str = "post_ln", task: str = "translation") -> Any:
    """What fairseq-train makes of ``flags``."""
    # composing takes a second; what has no dataclass gets all arguments, and the rest nothing of the model's
    cfg = copy.deepcopy(_settings(flags, variant if "--residual-args" in flags else "post_ln", task))
    args = _arguments(flags, variant, task)
    for settings in cfg.values():
        if isinstance(settings, Namespace):
            vars(settings).update(vars(args))
    cfg.model._name = args.arch
    return cfg


def make_trainer(*flags: str, variant: str = "post_ln", task: str = "translation", seed: int = 1) -> Any:
    """A trainer of a model without dropout."""
    torch.manual_seed(seed)
    cfg = make_config(*flags, variant=variant, task=task)
    without_data = Task(cfg.task)
    model, criterion = build_model(cfg.model, without_data), build_criterion(cfg.criterion, without_data)
    return Trainer(cfg, without_data, model, criterion)


def sample(seed: int = 5, sentences: int = 3, task: str = "translation") -> dict[str, Any]:
    """A batch as fairseq's data sets make it."""
    inputs = batch(task, sentences, seed)
    previous = target_tokens(task, inputs)
    target = previous.roll(-1, 1)
    target[previous.eq(PAD)] = PAD
    return {
        "id": torch.arange(sentences),
        "nsentences": sentences,
        "ntokens": int(target.ne(PAD).sum()),
        "net_input": inputs,
        "target": target,
    }


def update(trainer: Any, *samples: dict[str, Any]) -> dict[str, float]:
    """One update on the samples, accumulated; what was logged of it."""
    with metrics.aggregate(new_root=True) as logged:
        trainer.train_step(list(samples))
    return logged.get_smoothed_values()


def saved(trainer: Any, path: Path, batches: int = 1) -> str:
    """Save a checkpoint after some batches of the first epoch; return its path."""
    trainer.consolidate_optimizer()
    iterator = {"epoch": 1, "iterations_in_epoch": batches, "version": 2}
    trainer.save_checkpoint(str(path), {"train_iterator": iterator})
    return str(path)

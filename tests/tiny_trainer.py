"""fairseq's own trainer around a tiny model, in this process: configured by flags, fed batches of ``tiny``."""

from __future__ import annotations

import copy
from argparse import Namespace
from functools import cache
from typing import Any

import torch
from fairseq import options
from fairseq.criterions import build_criterion
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.models import build_model
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from tiny import PAD, batch, dimensions, make_dictionary

from fairseq_residuals.models import extensions

SGD = ("--optimizer", "sgd", "--lr", "0.1", "--lr-scheduler", "fixed")


class Task(FairseqTask):
    """A task without data."""

    source_dictionary = target_dictionary = make_dictionary()


@cache
def _parsed(flags: tuple[str, ...], variant: str, *_extensions: extensions.Extension) -> Namespace:
    model = ["--arch", f"transformer_{variant}_6l", *dimensions("translation")]
    argv = ["data", "--cpu", "--criterion", "cross_entropy", *model, *flags]
    return options.parse_args_and_arch(options.get_training_parser(), argv)


def _arguments(flags: tuple[str, ...], variant: str) -> Namespace:
    # fairseq makes three parsers to read one command line, and two trainers of a test often have the same
    return copy.deepcopy(_parsed(flags, variant, *extensions.EXTENSIONS.values()))


@cache
def _settings(flags: tuple[str, ...], variant: str) -> Any:
    return convert_namespace_to_omegaconf(_arguments(flags, variant))


def make_config(*flags: str, variant: str = "post_ln") -> Any:
    """What fairseq-train makes of ``flags``."""
    # composing takes a second; what has no dataclass gets all arguments, and the rest nothing of the model's
    cfg = copy.deepcopy(_settings(flags, variant if "--residual-args" in flags else "post_ln"))
    args = _arguments(flags, variant)
    for settings in cfg.values():
        if isinstance(settings, Namespace):
            vars(settings).update(vars(args))
    cfg.model._name = args.arch
    return cfg


def make_trainer(*flags: str, variant: str = "post_ln", seed: int = 1) -> Any:
    """A trainer of a translation model without dropout."""
    torch.manual_seed(seed)
    cfg = make_config(*flags, variant=variant)
    task = Task(cfg.task)
    return Trainer(cfg, task, build_model(cfg.model, task), build_criterion(cfg.criterion, task))


def sample(seed: int = 5, sentences: int = 3) -> dict[str, Any]:
    """A batch as fairseq's data sets make it."""
    inputs = batch("translation", sentences, seed)
    target = inputs["prev_output_tokens"].roll(-1, 1)
    target[inputs["prev_output_tokens"].eq(PAD)] = PAD
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

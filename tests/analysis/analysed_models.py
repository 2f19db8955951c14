"""Subjects of analyses, made as the commands make them, and checkpoints and corpora to analyse."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from tiny import depth_for

import fairseq_residuals  # noqa: F401  registers the architectures
from fairseq_residuals.lab.look import models
from fairseq_residuals.lab.look.probes import ModelAndLoss
from fairseq_residuals.lab.look.subjects import add_flags
from fairseq_residuals.lab.look.subjects import subjects as models_of_flags
from fairseq_residuals.plugin.checkpoints.checkpoint_file import save
from fairseq_residuals.wirings.core.registry import VARIANTS

TINY = ("--layers", "3", "--dim", "16", "--ffn-dim", "32", "--heads", "2", "--sentences", "3", "--tokens", "6")
B2T_FIGURE_3 = ("--layers", "18", "--dim", "512", "--ffn-dim", "2048", "--heads", "8")
RESIDUAL_FIGURE_2 = ("--layers", "36", "--dim", "256", "--ffn-dim", "1024", "--heads", "4")
"""A batch of 16 sentences of 20 tokens is the default."""


def arguments(*flags: str) -> Namespace:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    args, args_further = parser.parse_known_args(flags)
    args.further = args_further
    for variant in VARIANTS.keys() & {*(args.variants or ())}:
        if str(args.layers).isdigit():
            args.layers = str(depth_for(variant, int(args.layers)))
    return args


def subjects(*flags: str) -> Iterator[ModelAndLoss]:
    return models_of_flags(arguments(*flags))


def subject(variant: str, *flags: str) -> ModelAndLoss:
    (found,) = subjects("--variants", variant, *(flags or TINY))
    return found


def checkpoint(file: Path, model: Any, settings: Namespace, by_hydra: bool = False) -> Path:
    """As fairseq-train or fairseq-hydra-train writes it, but for the state of an optimizer that made no update."""
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    state = {
        "args": None if by_hydra else settings,
        "cfg": _of_hydra(settings) if by_hydra else None,
        "model": model.state_dict(),
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }
    save(state, file)
    return file


def _of_hydra(settings: Namespace) -> dict[str, Any]:
    cfg = OmegaConf.to_container(convert_namespace_to_omegaconf(settings), enum_to_str=True)
    given = {key: value for key, value in vars(settings).items() if key != "arch"}
    return {**cfg, "model": {**given, "_name": settings.arch}}


def built(variant: str, *flags: str) -> tuple[Any, Namespace]:
    """A model and its settings."""
    model, settings, _ = models.build(variant, arguments("--variants", variant, *(flags or TINY)))
    return model, settings


def corpus(folder: Path, sentences: list[tuple[list[int], list[int]]], words: int = 30) -> Path:
    """A binarized parallel corpus, split "valid", of languages s and t, from indices of words."""
    dictionary = Dictionary()
    for i in range(words):
        dictionary.add_symbol(f"w{i}", n=words - i)
    for side, language in enumerate("st"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
        stem = folder / f"valid.s-t.{language}"
        builder = MMapIndexedDatasetBuilder(f"{stem}.bin")
        for pair in sentences:
            builder.add_item(torch.tensor([*pair[side], dictionary.eos()]))
        builder.finalize(f"{stem}.idx")
    return folder

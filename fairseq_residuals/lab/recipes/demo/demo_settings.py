"""What the demo is asked to do, and the runs that this comes to."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.lab.recipes.losses import unigram_loss
from fairseq_residuals.lab.recipes.synthetic_tasks import translation
from fairseq_residuals.lab.recipes.synthetic_tasks.task import Row, Sizes, Task
from fairseq_residuals.lab.recipes.workspace import Workspace
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import find_variant

CONFIG = "synthetic/demo"
LANGUAGES = ("en", "de")
MERGES = 1000
VALIDATIONS = 4
POINTS = 40
"""Of a loss curve."""


@dataclass(frozen=True)
class DemoSizes(Sizes):
    """More held-out sentences than the small tasks have."""

    HELD_OUT = 1000


@dataclass(frozen=True)
class Settings:
    """The demo's options; see ``--help`` for what they mean."""

    out: Path
    variants: tuple[str, ...] = ("post_ln", "pre_ln", "b2t")
    layers: int = 18
    seeds: int = 1
    updates: int = 800
    pairs: int = 30_000
    jobs: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be run.

        Raises:
            UserError: the message says what is valid.
        """
        for variant in self.variants:
            find_variant(variant)
        if len(set(self.variants)) < len(self.variants):
            raise UserError(f"--variants names a variant twice: {' '.join(self.variants)}")
        for option, least in {"layers": 1, "seeds": 1, "updates": 10, "pairs": 100, "jobs": 1}.items():
            if getattr(self, option) < least:
                raise UserError(f"--{option} is {getattr(self, option)} and has to be at least {least}")
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"--out names {self.out}, which is not a folder")

    @property
    def sizes(self) -> DemoSizes:
        return DemoSizes(self.pairs, self.updates, MERGES)

    @property
    def task(self) -> Task:
        """The small translation task's data and BPE, not tokenized, and runs of the demo's own configuration."""
        rows = {variant: Row(CONFIG, architecture(variant, self.layers)) for variant in self.variants}
        return replace(
            translation.TASK, name="demo", variant="plain", rows=rows, overrides=(), schedule=logged_and_validated
        )

    def job(self, workspace: Workspace, variant: str, seed: int) -> Job:
        label = f"{variant}-{self.layers}l"
        return Job(replace(workspace.settings(variant), label=label), CONFIG, seed)


def architecture(variant: str, layers: int) -> tuple[str, ...]:
    """Return the overrides that choose a variant and a depth."""
    name = f"transformer_{variant}"
    if f"{name}_{layers}l" in ARCH_MODEL_REGISTRY:
        return (f"model._name={name}_{layers}l",)
    return (f"model._name={name}", f"model.encoder_layers={layers}", f"model.decoder_layers={layers}")


def logged_and_validated(updates: int) -> tuple[str, ...]:
    """Return the overrides that depend on the number of updates."""
    return (
        f"optimization.max_update={updates}",
        f"common.log_interval={math.ceil(updates / POINTS)}",
        f"dataset.validate_interval_updates={math.ceil(updates / VALIDATIONS)}",
    )


def unigram_loss_of(corpus: Path) -> float:
    """Return the bits per token of a model that knows only how frequent each token is in the training targets."""
    counts: Counter[str] = Counter()
    with (corpus / "text" / f"train.{LANGUAGES[1]}").open(encoding="utf-8") as lines:
        for line in lines:
            counts.update([*line.split(), "</s>"])
    return unigram_loss(counts)

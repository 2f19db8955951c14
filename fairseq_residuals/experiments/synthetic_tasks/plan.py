"""What one call of a small pipeline asks for, and where its work lies."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from fairseq_residuals.cli.reproduce import CONFIGS
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.data.pipeline.corpus import STAND_IN, Job, prepare
from fairseq_residuals.data.pipeline.download import Downloads
from fairseq_residuals.experiments.demo.settings import COMPATIBILITY, PLUGIN, code_digest, fresh_folder, key, versions
from fairseq_residuals.experiments.job import Machine, Settings
from fairseq_residuals.experiments.synthetic_tasks.task import Sizes, Task
from fairseq_residuals.utils.documents import read_json

TASKS = ("translation", "multilingual", "summarization", "language_model", "speech")


def find_task(name: str) -> Task:
    """
    Raises:
        UserError: there is no such task.
    """
    if name not in TASKS:
        raise UserError(f"there is no small pipeline {name!r}: choose one of {', '.join(TASKS)}")
    task: Task = import_module(f"fairseq_residuals.experiments.synthetic_tasks.{name}").TASK
    return task


def work_folder(name: str, out: Path, sizes: Sizes, overrides: Sequence[str], any_code: bool = False) -> Path:
    """Of all that a call makes: what is made by another call or by other code is not mixed with it.

    Args:
        any_code: work goes on with other code; whoever records it says by which.

    Raises:
        UserError: there cannot be such a folder.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"--out names {out}, which is not a folder")
    made_by = [] if any_code else [code_digest(PLUGIN, COMPATIBILITY)]
    made_by += versions("Babel", "fairseq", "torch")
    return out.resolve() / f"{name}-{key(asdict(sizes), list(overrides), made_by)}"


@dataclass(frozen=True)
class Plan:
    """One call."""

    name: str
    """Of the task."""
    folder: Path
    sizes: Sizes
    overrides: tuple[str, ...] = ()
    """The user's own."""

    def __post_init__(self) -> None:
        """Raises UserError for what cannot be run."""
        for option, least in {"examples": 20, "updates": 4, "subwords": 1}.items():
            value = getattr(self.sizes, option)
            if value < least:
                raise UserError(f"--{option} is {value} and has to be at least {least}")

    @cached_property
    def task(self) -> Task:
        return find_task(self.name)

    @property
    def mirror(self) -> Path:
        """The archives that were made."""
        return self.folder / "mirror"

    def check(self) -> None:
        """Raises UserError if the data have still to be made and cannot be; before anything is written."""
        if self.task.check is not None and not self.mirror.exists():
            self.task.check()

    @property
    def results(self) -> Path:
        return self.folder / "results.csv"

    def prepare(self, workers: int) -> Path:
        """Makes the data and prepares them as the paper's corpus is; returns the corpus's summary.

        Raises:
            UserError: a program is missing that makes them.
        """
        described = self.mirror / STAND_IN
        if not described.is_file():
            partial = fresh_folder(self.mirror)
            stand_in = self.task.make(partial, self.sizes)
            (partial / described.name).write_text(json.dumps(stand_in))
            partial.rename(self.mirror)
        stand_in = read_json(described)
        corpus = self.task.corpus
        out = self.folder / "data" / corpus.name / (self.task.variant or "")
        logging.getLogger("fairseq_cli.preprocess").setLevel(logging.WARNING)
        downloads = Downloads(self.folder / "downloads", self.mirror, digests={})
        return prepare(corpus, self.task.variant, Job(out, downloads, workers, stand_in))

    def settings(self, row: str) -> Settings:
        """How a row of the paper is trained here."""
        return Settings(
            configs=CONFIGS,
            data=self.folder / "data",
            out=self.folder / "runs",
            machine=Machine(gpus=0),
            overrides=(*self.task.all_overrides(row, self.sizes.updates), *self.overrides),
        )

    def as_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields: dict[str, Any] = json.loads(text)
        return cls(fields["name"], Path(fields["folder"]), Sizes(**fields["sizes"]), tuple(fields["overrides"]))

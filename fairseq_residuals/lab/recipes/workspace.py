"""Where the work on one synthetic task lies, under a key of all that decides what comes out.

The lock of a folder and folders that are whole or not there are :mod:`fairseq_residuals.plugin.folders`, atomic writes
:mod:`modern_fairseq.atomic_write`: the preparation of corpora, which knows no experiment, needs them as well.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fairseq_residuals
import modern_fairseq
from fairseq_residuals.lab.data.pipeline.corpus import STAND_IN, Job, prepare
from fairseq_residuals.lab.data.pipeline.download import Downloads
from fairseq_residuals.lab.recipes.job import PLUGIN, Settings
from fairseq_residuals.lab.recipes.machine import Machine
from fairseq_residuals.lab.recipes.synthetic_tasks.task import Sizes, Task
from fairseq_residuals.lab.utils.checkout import CONFIGS, ROOT, require_checkout
from fairseq_residuals.plugin.folders import locked, new_folder
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import read_json

NOT_TRAINING = ("lab/bench", "lab/look", "lab/recipes")
"""Packages that do not change what a run gives but by its configuration."""
OPTIONS = {"examples": 20, "updates": 4, "subwords": 1}
"""The sizes that a user chooses, and the least of each."""


def content_key(*parts: Any) -> str:
    """Return a short name for what the parts, anything that JSON can hold, describe."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


@cache
def code_digest(package: str | None = None) -> str:
    """Return a digest of the code that makes data and trains, or of one package of it.

    Work of older code is not gone on with.
    """
    digest = hashlib.sha256()
    folders = (PLUGIN / package,) if package else (PLUGIN, Path(modern_fairseq.__file__).parent)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if not path.relative_to(folder).as_posix().startswith(NOT_TRAINING):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def versions(*packages: str) -> list[str]:
    """Return names and versions of installed packages."""
    return [f"{package} {version(package)}" for package in packages]


def commit() -> str:
    """Return the commit of this checkout, "-dirty" where more than results was changed, or the release installed."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    # the first score on record changes a file of results, and no later score by that
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    described = git("rev-parse", "HEAD")
    return f"{described}{'-dirty' if changed else ''}" if described else f"release {fairseq_residuals.__version__}"


@dataclass(frozen=True)
class Workspace:
    """The folder of one task at one size: its data and its runs."""

    task: Task
    folder: Path
    sizes: Sizes
    overrides: tuple[str, ...] = ()
    """The user's own, as hydra takes them."""

    @classmethod
    def under(
        cls, out: Path, task: Task, sizes: Sizes, overrides: Sequence[str] = (), name: str = "", any_code: bool = False
    ) -> Workspace:
        """Return the workspace in ``out`` whose name says by a key what is made there: other work is not mixed with it.

        Args:
            name: what the folder's name begins with; the task's by default.
            any_code: work goes on with other code; whoever records it says by which.

        Raises:
            UserError: there cannot be such a folder, or no run of these sizes, or the configurations are missing.
        """
        require_checkout(CONFIGS)
        if out.exists() and not out.is_dir():
            raise UserError(f"--out names {out}, which is not a folder")
        for option, least in OPTIONS.items():
            if getattr(sizes, option) < least:
                raise UserError(f"--{option} is {getattr(sizes, option)} and has to be at least {least}")
        made_by = versions("Babel", "fairseq", "torch") + ([] if any_code else [code_digest()])
        key = content_key(asdict(sizes), list(overrides), made_by)
        return cls(task, out.resolve() / f"{name or task.name}-{key}", sizes, tuple(overrides))

    @property
    def results(self) -> Path:
        """The file of what came of the runs."""
        return self.folder / "results.csv"

    @property
    def data(self) -> Path:
        """The task's data, which trainings of other lengths share."""
        task = self.task
        made_from = [self.sizes.examples, self.sizes.subwords, task.variant, code_digest("lab/data")]
        key = content_key(made_from, versions("Babel", "subword-nmt", "fairseq"))
        return self.folder.parent / f"data-{task.corpus.name}-{key}"

    @property
    def mirror(self) -> Path:
        """The archives that were made."""
        return self.data / "mirror"

    @property
    def corpus(self) -> Path:
        """The corpus that was prepared from them."""
        return self.data / self.task.corpus.name / (self.task.variant or "")

    def check(self) -> None:
        """Raise UserError if the data have still to be made and cannot be; before anything is written."""
        if self.task.check is not None and not self.mirror.exists():
            self.task.check()

    def prepare(self, workers: int) -> Path:
        """Make the data and prepare them as the paper's corpus is; return the corpus's summary.

        Raises:
            UserError: a program is missing that makes them.
        """
        with locked(self.data, wait=True):
            if not self.mirror.exists():
                with new_folder(self.mirror) as partial:
                    described = self.task.make(partial, self.sizes)
                    (partial / STAND_IN).write_text(json.dumps(described))
            stand_in = read_json(self.mirror / STAND_IN)
            logging.getLogger("fairseq_cli.preprocess").setLevel(logging.WARNING)
            downloads = Downloads(self.data / "downloads", self.mirror, digests={})
            return prepare(self.task.corpus, self.task.variant, Job(self.corpus, downloads, workers, stand_in))

    def settings(self, row: str) -> Settings:
        """Return how a row of the task's table is trained here."""
        return Settings(
            configs=CONFIGS,
            data=self.data,
            out=self.folder / "runs",
            machine=Machine(gpus=0),
            overrides=(*self.task.all_overrides(row, self.sizes.updates), *self.overrides),
        )

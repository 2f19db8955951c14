"""Steps that make folders: each is done once and wholly, or not at all.

A step fills ``OUT/<name>.partial``, which is renamed when it is complete; so what has the step's name is whole, and
what was cut off is thrown away by the next run. The key of a step covers its parameters and the keys of the steps
that it builds on: if one of them changes, the step is done again. Steps are asked for from the end, as by make: what
a finished step was made from need not exist any more.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fairseq_residuals.plugin.documents import read_record
from fairseq_residuals.plugin.folders import new_folder

STAMP = ".step.json"
FORMAT = 1
"""Version of the parameters' meaning, raised when the same ones come to mean something else."""


@dataclass(frozen=True, eq=False)
class Step:
    """A folder ``name`` in OUT, and how ``make(folder, *folders of after)`` fills it."""

    name: str
    make: Callable[..., None]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[Step, ...] = ()

    @cached_property
    def key(self) -> str:
        """Digest that changes with whatever the contents of the folder depend on."""
        described = [FORMAT, self.name, self.parameters, [step.key for step in self.after]]
        return hashlib.sha256(json.dumps(described, sort_keys=True, default=repr).encode()).hexdigest()

    def is_done(self, out: Path) -> bool:
        stamp = out / self.name / STAMP
        return stamp.is_file() and read_record(stamp, "key")["key"] == self.key

    def ensure(self, out: Path) -> Path:
        """Return the folder of the step in ``out``, which is made if it is not there."""
        folder = out / self.name
        if self.is_done(out):
            return folder
        sources = [earlier.ensure(out) for earlier in self.after]
        print(f"prepare: {self.name} ...", file=sys.stderr, flush=True)
        begin = time.monotonic()
        remove(folder)  # of other parameters; two of them might not fit on the disk
        with new_folder(folder) as partial:
            self.make(partial, *sources)
            stamp = {"key": self.key, "parameters": self.parameters}
            text = json.dumps(stamp, sort_keys=True, default=repr, indent=1, ensure_ascii=False)
            (partial / STAMP).write_text(text, encoding="utf-8")
        print(f"prepare: {self.name} done in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
        return folder


def foreign(folder: Path) -> Path | None:
    """Return a file in ``folder``, or at its place, that is in no step's folder; None where there is none."""
    if folder.is_file():
        return folder
    for place, folders, files in os.walk(folder):
        if STAMP in files or place.endswith(".partial"):
            folders.clear()
        elif files:
            return Path(place, files[0])
    return None


def remove(folder: Path) -> None:
    """Remove a folder of ours. A killed removal leaves it as NAME.partial, which the next call removes."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    if folder.exists():
        folder.rename(partial)
        shutil.rmtree(partial)


def share(source: Path, target: Path) -> None:
    """Give a finished file a second name, or copy it where the file system knows one name per file only."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)

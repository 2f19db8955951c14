"""What the demo is asked to do, and the keys under which finished work is found again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fairseq_residuals
import modern_fairseq
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.registry import find_variant

PLUGIN = Path(fairseq_residuals.__file__).parent
COMPATIBILITY = Path(modern_fairseq.__file__).parent


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
        """Raises UserError for what cannot be run."""
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
    def sizes(self) -> dict[str, int]:
        """Sentence pairs per split."""
        held_out = min(1000, self.pairs // 10)
        return {"train": self.pairs, "valid": held_out, "test": held_out}


def default_jobs() -> int:
    """One run more than there are cores.

    Three runs on two cores then end after one and a half times what one takes alone; with the third queued, a
    core would idle while it runs.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def key(*parts: Any) -> str:
    """A short name for what the parts, anything that JSON can hold, describe."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


@cache
def code_digest(*folders: Path) -> str:
    """Of the code in ``folders``, less the demo's own: results of older code are not reused."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if not path.is_relative_to(PLUGIN / "demo"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def versions(*packages: str) -> list[str]:
    """Of installed packages."""
    return [f"{package} {version(package)}" for package in packages]


def partial_of(path: Path) -> Path:
    """Where ``path`` is written before it is renamed: what is half-done must not look finished."""
    return path.with_name(f"{path.name}.partial")


def fresh_folder(folder: Path) -> Path:
    """The empty folder in which to make ``folder``; what an interrupted attempt left there is gone."""
    partial = partial_of(folder)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial

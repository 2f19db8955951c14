"""Tiny cases of the benchmark, and entries that fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.bench import worker
from fairseq_residuals.lab.bench.entries import Case, Entry, parse
from fairseq_residuals.lab.bench.rounds import Failed
from fairseq_residuals.wirings.core.errors import UserError

TINY = Case(
    layers="2",
    dim=16,
    ffn_dim=32,
    heads=2,
    vocabulary=40,
    sentences=3,
    tokens=5,
    precision="fp32",
    device="cpu",
    warmup=1,
    steps=2,
    seed=1,
)
FLAGS = ["--dims", "16x32x2", "--layers", "2", "--tokens", "3x5", "--vocabulary", "40", "--steps", "2", "--warmup", "1"]

FAILING = """
import os, signal, torch
from fairseq_residuals.wirings.core.errors import UserError

def killed(entry, case):
    os.kill(os.getpid(), signal.SIGKILL)

def crashed(entry, case):
    raise RuntimeError("the roof is on fire")

def too_large(entry, case):
    torch.empty(2**60, dtype=torch.uint8)

def refused(entry, case):
    raise UserError("mmap_max is " + os.environ["MALLOC_MMAP_MAX_"])
"""


def failing_package(folder: Path) -> Path:
    """A folder for PYTHONPATH: package ``failing`` with makers that fail, each in its way."""
    (folder / "failing").mkdir()
    (folder / "failing/__init__.py").touch()
    (folder / "failing/make.py").write_text(FAILING)
    return folder


def train(entry: str | Entry, case: Case = TINY) -> worker.Measured:
    """What the entry's process would do, in this one."""
    return worker.train(asdict(parse(entry) if isinstance(entry, str) else entry), asdict(case))


def here(mode: str, told: Mapping[str, Any], timeout: float, environment: Mapping[str, str] | None = None) -> Any:
    """In place of :func:`fairseq_residuals.lab.bench.rounds.work`: the same in this process, through the same JSON."""
    try:
        return json.loads(json.dumps(worker.MODES[mode](**json.loads(json.dumps(told)))))
    except UserError as error:
        raise Failed(f"not measured: {error}") from error

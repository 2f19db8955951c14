"""Tiny cases of the benchmark, and contestants that fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.bench import worker
from fairseq_residuals.lab.bench.case import Case
from fairseq_residuals.lab.bench.contestants import Contestant, parse
from fairseq_residuals.lab.bench.rounds import Failed
from fairseq_residuals.wirings.core.errors import UserError

TINY = Case(
    layers=2,
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

def killed(contestant, case):
    os.kill(os.getpid(), signal.SIGKILL)

def crashed(contestant, case):
    raise RuntimeError("the roof is on fire")

def too_large(contestant, case):
    torch.empty(2**60, dtype=torch.uint8)

def refused(contestant, case):
    raise UserError("mmap_max is " + os.environ["MALLOC_MMAP_MAX_"])
"""


def failing_package(folder: Path) -> Path:
    """A folder for PYTHONPATH: package ``failing`` with makers that fail, each in its way."""
    (folder / "failing").mkdir()
    (folder / "failing/__init__.py").touch()
    (folder / "failing/make.py").write_text(FAILING)
    return folder


def train(contestant: str | Contestant, case: Case = TINY) -> worker.Measured:
    """What the contestant's process would do, in this one."""
    return worker.train(asdict(parse(contestant) if isinstance(contestant, str) else contestant), asdict(case))


def here(mode: str, told: Mapping[str, Any], timeout: float, environment: Mapping[str, str] | None = None) -> Any:
    """In place of :func:`fairseq_residuals.lab.bench.rounds.work`: the same in this process, through the same JSON."""
    try:
        return json.loads(json.dumps(worker.MODES[mode](**json.loads(json.dumps(told)))))
    except UserError as error:
        raise Failed(f"not measured: {error}") from error

"""Tiny cases of the benchmark."""

from __future__ import annotations

import json
from typing import Any

from fairseq_residuals.lab.bench import worker
from fairseq_residuals.lab.bench.entries import Case, Entry
from fairseq_residuals.lab.bench.fairseq_models import parse
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


def train(entry: str | Entry, case: Case = TINY) -> worker.Measured:
    """What the entry's process would do, in this one."""
    return worker.train(parse(entry) if isinstance(entry, str) else entry, case)


def here(mode: str, entry: Entry, case: Case, timeout: float) -> Any:
    """In place of :func:`fairseq_residuals.lab.bench.rounds.work`: the same in this process, through the same JSON."""
    try:
        return json.loads(json.dumps(worker.answer(**json.loads(json.dumps(worker.request(mode, entry, case))))))
    except UserError as error:
        raise Failed(f"not measured: {error}") from error

"""Every table of synthetic data from nothing to its scores, with models of one layer and a handful of updates."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU
from small_by_forks import printed_by_forks

from fairseq_residuals.lab.recipes.tables import read_records

SHALLOW = ["model.encoder_layers=1", "model.decoder_layers=1"]
FAKE_VOICE = """#!{python}
# a stand-in for the program: 40 ms of noise for each word
import random, sys, wave
words = sys.argv[-1].split()
assert sys.argv[1:] == ["-v", sys.argv[2], "-s", sys.argv[4], "-p", sys.argv[6], "--stdout", sys.argv[-1]]
noise = random.Random(sys.argv[-1])
with wave.open(sys.stdout.buffer, "wb") as sound:
    sound.setparams((1, 2, 16000, 640 * len(words), "NONE", ""))
    sound.writeframes(noise.randbytes(1280 * len(words)))
"""


def reproduced(table: str, row: str, out: Path, *overrides: str, **environment: str) -> str:
    """What the command prints, whose own commands are forks: each import takes seconds."""
    files = [f"--{flag}={out / flag}" for flag in ("data", "out")]
    call = ["reproduce", f"synthetic/{table}", "--rows", row, "--gpus", "0", "--max-update", "6", *files]
    call += ["--results", str(out / "results.csv"), "--override", "recipe.variant=tiny"]
    call += ["checkpoint.save_interval_updates=1", *(overrides or SHALLOW)]
    return printed_by_forks(call, out.parent / "streams", **environment)


def check(table: str, row: str, out: Path, columns: set[str], metrics: set[str]) -> None:
    """One row was trained, averaged, scored and recorded."""
    records = read_records(out / "results.csv")
    assert {record.column for record in records} == columns
    assert {(record.table, record.row, record.seed) for record in records} == {(table, row, 1)}
    assert {record.metric for record in records} == metrics
    assert all(math.isfinite(record.value) and record.value >= 0 for record in records)
    (run,) = out.glob("out/synthetic/*/*/*/seed1")
    assert (run / "average.pt").is_file()
    assert not list(out.rglob("*.partial"))


def test_translation(tmp_path: Path) -> None:
    out = tmp_path / "out"
    reproduced("translation", "18L-18L/B2T", out)
    check("translation", "18L-18L/B2T", out, {"BLEU"}, {"sacrebleu"})
    corpus = out / "data/cldr_en_de/tiny"
    (log,) = out.rglob("evaluated/*.log")
    hypotheses = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", log.read_text("utf-8"), re.M))
    references = (corpus / "raw/test.de").read_text("utf-8").splitlines()
    score = BLEU().corpus_score([hypotheses[str(i)] for i in range(10)], [references]).score
    (record,) = read_records(out / "results.csv")
    assert record.value == pytest.approx(score, abs=1e-9)
    lines = json.loads((corpus / "prepared.json").read_text())["lines"]
    assert lines == {"train": 100, "valid": 10, "test": 10}


def test_multilingual_scores_both_directions_of_each_pair(tmp_path: Path) -> None:
    out = tmp_path / "out"
    reproduced("multilingual", "18L-18L/Post-LN", out)
    check("multilingual", "18L-18L/Post-LN", out, {"EX", "XE"}, {"sacrebleu"})
    pairs = ["en-de", "de-en", "en-fr", "fr-en"]
    assert sorted(log.name.split(".")[1].rpartition("-")[0] for log in out.rglob("evaluated/*.log")) == sorted(pairs)
    german = next(out.rglob("evaluated/test.en-de-*.log")).read_text("utf-8")
    assert "__de__" in german  # the tag of the target language stands on the source


def test_speech_with_a_stand_in_for_the_program(tmp_path: Path) -> None:
    program = tmp_path / "bin/espeak-ng"
    program.parent.mkdir()
    program.write_text(FAKE_VOICE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = f"{program.parent}:{os.environ['PATH']}"
    reproduced("speech", "12L-6L/Pre-LN", tmp_path / "out", PATH=path)
    columns = {"dev-clean", "dev-other", "test-clean", "test-other"}
    check("speech", "12L-6L/Pre-LN", tmp_path / "out", columns, {"wer"})

"""``fairseq-residuals curves``: what it draws, prints and writes, from logs made by hand."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from refusals import refusal

from fairseq_residuals.__main__ import main


def log(folder: Path, variant: str, layers: int, losses: list[float], seed: int = 1) -> Path:
    """A log that says what its run was; valid losses at updates 10, 20, ..."""
    file = folder / f"{variant}-{layers}-{seed}.log"
    lines = [f"'seed': {seed}"]
    lines += [f"{stack}: {layers} layers wired by {variant} (init_scale=1), x" for stack in ("encoder", "decoder")]
    for i, loss in enumerate(losses, start=1):
        lines.append(f"epoch 001 | valid on 'valid' subset | loss {loss} | ppl {2**loss} | num_updates {10 * i}")
        lines.append(f"epoch 001:  {i} / 9 loss={loss + 1}, num_updates={10 * i}")
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def curves(folder: Path, *arguments: object) -> list[list[str]]:
    """The CSV file of a run of the command."""
    assert main(["curves", *map(str, arguments), "--out", str(folder / "out")]) == 0
    assert (folder / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    return list(csv.reader((folder / "out" / "curves.csv").read_text().splitlines()))


def test_over_updates_with_a_band(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [log(tmp_path, "b2t", 2, [5.0, 3.0], seed=1), log(tmp_path, "b2t", 2, [6.0, 4.0, 3.5], seed=2)]
    head, *rows = curves(tmp_path, *logs)
    assert head == ["label", "wiring", "subset", "update", "loss", "low", "high", "runs"]
    # the second run goes on alone: its last point is no mean of both
    assert rows == [
        ["B2T connection", "b2t", "train", "10", "6.5", "6.0", "7.0", "2"],
        ["B2T connection", "b2t", "train", "20", "4.5", "4.0", "5.0", "2"],
        ["B2T connection", "b2t", "valid", "10", "5.5", "5.0", "6.0", "2"],
        ["B2T connection", "b2t", "valid", "20", "3.5", "3.0", "4.0", "2"],
    ]
    out = capsys.readouterr().out
    assert "| B2T connection | 2-2 | valid | 2 | 3.25 | 3 | 3.5 | 3.5 | 20 |" in re.sub(" +", " ", out)
    assert "B2T connection: the line ends at update 20 with the shortest run; the longest has 30" in out


def test_attempts_at_a_run_are_one_run(tmp_path: Path) -> None:
    """The first ended at update 20, the second before it logged anything, the third went on from a checkpoint at 10."""
    for seed in (1, 2):
        (tmp_path / f"seed{seed}").mkdir()
        log(tmp_path, "b2t", 2, [5.0, 3.0], seed).rename(tmp_path / f"seed{seed}/train.001.log")
        (tmp_path / f"seed{seed}/train.002.log").write_text(f"'seed': {seed}\n")
        again = log(tmp_path, "b2t", 2, [5.0, 4.0, 2.0], seed).rename(tmp_path / f"seed{seed}/train.003.log")
        again.write_text("".join(line for line in again.read_text().splitlines(True) if "num_updates 10" not in line))
    _, *rows = curves(tmp_path, tmp_path / "seed*/train.*.log", "--subset", "valid")
    assert [row[2:5] + row[-1:] for row in rows] == [
        ["valid", "10", "5.0", "2"],
        ["valid", "20", "4.0", "2"],
        ["valid", "30", "2.0", "2"],
    ]


def test_the_best_value_against_depth(tmp_path: Path) -> None:
    logs = [log(tmp_path, v, n, [9.0 / n, 8.0 / n, 10.0 / n]) for v in ("pre_ln", "b2t") for n in (4, 2)]
    head, *rows = curves(tmp_path, *logs, "--against", "layers", "--subset", "valid")
    assert head[3] == "layers"
    assert [row[:5] for row in rows] == [
        ["Pre-LN", "pre_ln", "valid", "4", "4.0"],
        ["Pre-LN", "pre_ln", "valid", "8", "2.0"],
        ["B2T connection", "b2t", "valid", "4", "4.0"],
        ["B2T connection", "b2t", "valid", "8", "2.0"],
    ]


def test_bleu_of_generated_text_is_best_where_it_is_largest(tmp_path: Path) -> None:
    files = []
    for layers, scores in ((6, (20.5, 21.5)), (30, (29.0, 29.5))):
        for seed, score in enumerate(scores):
            files.append(tmp_path / f"{layers}-{seed}.txt")
            wired = f"encoder: {layers} layers wired by dlcl_pre (a=1), x"
            files[-1].write_text(f"{wired}\nGenerate test with beam=4: BLEU4 = {score},\n")
    named = [f"DLCL={file}" for file in files]
    rows = curves(tmp_path, *named, "--metric", "bleu", "--subset", "test", "--against", "encoder-layers")
    assert [row[3:] for row in rows[1:]] == [["6", "21.0", "20.5", "21.5", "2"], ["30", "29.25", "29.0", "29.5", "2"]]


def test_the_table_of_the_joeynmt_exercise(tmp_path: Path) -> None:
    line = "epoch 001 | valid on 'valid' subset | loss 5 | ppl {} | num_updates {}\n"
    for name, values in {"a": "56.61 49.93", "b": "44.79323 30.79974", "c": "41.49639 30.25"}.items():
        steps = zip(values.split(), (500, 1000), strict=True)
        (tmp_path / name).write_text("".join(line.format(*step) for step in steps))
    logs = [f"{label}={tmp_path / name}" for label, name in (("Baseline", "a"), ("Prenorm", "b"), ("Postnorm", "c"))]
    rows = curves(tmp_path, *logs, "--metric", "ppl", "--subset", "valid", "--wide", "Validation ppl", "--svg")
    # the head and the first lines of the exercise's ppl_table.csv
    assert rows == [
        ["Validation ppl", "Baseline", "Prenorm", "Postnorm"],
        ["500", "56.61", "44.79323", "41.49639"],
        ["1000", "49.93", "30.79974", "30.25"],
    ]
    assert "<svg" in (tmp_path / "out" / "curves.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["LOG", "--metric", "bleu"], "logs no bleu of train"),
        (["LOG", "--metric", "bleu", "--subset", "valid"], "logs no bleu of valid; of valid it has loss, ppl"),
        (["LOG", "--subset", "test"], "its subsets are train, valid"),
        (["."], "cannot be read: Is a directory"),
        (["nowhere.log"], "nowhere.log cannot be read: No such file or directory"),
        (["LOG", "--wide", "x"], "--wide needs one --subset"),
        (["LOG", "LOG"], "tells their runs apart"),
        (["LOG", "--out", "LOG"], "where nothing can be written"),
    ],
)
def test_bad_input(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    file = log(tmp_path, "b2t", 2, [5.0])
    assert sentence in refusal(capsys, "curves", *(file if a == "LOG" else a for a in arguments), status=2)
    assert not list(tmp_path.rglob("*.png"))

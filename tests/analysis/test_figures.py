"""scripts/figures: every command that they would run is one that exists, with wirings and flags that do.

The program is replaced by one that prints how it was called, and makes the files that a training would.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from analysed_models import arguments

from fairseq_residuals.__main__ import build_parser
from fairseq_residuals.lab.compare.entries import read_entries
from fairseq_residuals.lab.look import models, subjects

ROOT = Path(__file__).parents[2]
SCRIPTS = {path.stem: path.read_text() for path in sorted((ROOT / "scripts/figures").glob("*.sh"))}
TRAINED = [name for name, text in SCRIPTS.items() if "/trained.sh" in text]
ANALYSES = [name for name, text in SCRIPTS.items() if "exec fairseq-residuals" in text and "--name" in text]
RECORDER = """#!/usr/bin/env bash
printf "%q " "$@" >>"$RECORD"
echo >>"$RECORD"
[ "$1" != compare ] || { run="${!#}/copy-1/runs/compare/copy/a/seed1"; mkdir -p "$run"/{checkpoints,evaluated}
touch "$run"/{train.001.log,checkpoints/checkpoint_last.pt,evaluated/test.log}; }
[ "$1" != curves ] || touch "$OUT/ppl_lineplot.csv"
"""


def calls(figure: str, folder: Path, *arguments: str) -> list[list[str]]:
    """The commands that a figure's script runs."""
    shutil.copytree(ROOT / "scripts/figures", folder / "scripts/figures")
    (folder / "scripts/setup.sh").write_text("set -euo pipefail\n")
    (folder / "figures").mkdir()
    recorder = folder / "fairseq-residuals"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if k not in ("DEPTH", "DEPTHS", "UPDATES", "TOKENS")}
    own = {"PATH": f"{folder}:{os.environ['PATH']}", "OUT": "figures", "RECORD": str(folder / "record"), "DATA": "data"}
    command = ["bash", str(folder / "scripts/figures" / f"{figure}.sh"), *arguments]
    ended = subprocess.run(command, env=kept | own, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return [shlex.split(line) for line in (folder / "record").read_text().splitlines()]


def check(command: list[str]) -> None:
    args, further = build_parser().parse_known_args(command)
    assert args.run and not further


@pytest.mark.parametrize("figure", TRAINED)
def test_at_small_scale(figure: str, tmp_path: Path) -> None:
    *trainings, drawing = calls(figure, tmp_path)
    assert trainings
    for command in (*trainings, drawing):
        check(command)
    for command in trainings:
        args = build_parser().parse_args(command)
        entries, _ = read_entries(args.entries, tmp_path)
        assert args.task == "copy" and args.baseline == entries[0].name
    runs = [word for word in drawing if "/copy-1/runs/compare/copy/a/seed1/" in word]
    assert runs and all((tmp_path / run).is_file() for run in runs)


@pytest.mark.parametrize("figure", TRAINED)
def test_what_exists_is_drawn_and_nothing_trained(figure: str, tmp_path: Path) -> None:
    (command,) = calls(figure, tmp_path, "a.log", "B=b.log")
    assert "a.log" in command and command[0] != "compare"
    check(command)


@pytest.mark.parametrize("script", ANALYSES)
def test_a_figures_command_is_valid(script: str, tmp_path: Path) -> None:
    (command,) = calls(script, tmp_path, "--svg")
    args, further = build_parser().parse_known_args(command)
    assert (args.name, str(args.out), args.svg) == (script, "figures", True)
    if args.command in ("gradients", "change"):
        args.further = further
        wirings = subjects.named_wirings(args)
        assert args.variants == ["all"] or wirings == args.variants
        # a model of these flags can be made, in small
        small = arguments("--layers", "1", "--dim", "8", "--heads", "1", "--vocabulary", "9", *further)
        models.build(wirings[0], small)
    else:
        assert not further


@pytest.mark.parametrize("flags", [(), ("--paper",)])
def test_the_table_of_speeds_is_by_a_valid_command(flags: tuple[str, ...], tmp_path: Path) -> None:
    (command,) = calls("dlcl_figure4", tmp_path, *flags)
    args, further = build_parser().parse_known_args(command)
    assert args.command == "bench" and not further
    assert ("cuda" in command) == bool(flags)


def test_the_figures_of_the_papers_are_there() -> None:
    assert len(TRAINED) >= 12
    expected = {f"b2t_figure{n}" for n in (2, 3, 4, 7)} | {f"resi_dual_figure{n}" for n in ("1", "2a", "2b", "3")}
    assert set(ANALYSES) >= expected | {"depthwise_lstm_figures1-4", "dlcl_figure1", "dlcl_figure2"}

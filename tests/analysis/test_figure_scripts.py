"""The scripts of figures that need no training: what they call is valid, and the gallery names those that exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from analysed_models import arguments

from fairseq_residuals.__main__ import build_parser
from fairseq_residuals.lab.look import models

ROOT = Path(__file__).parents[2]
SCRIPTS = [p for p in sorted((ROOT / "scripts/figures").glob("*.sh")) if "exec fairseq-residuals" in p.read_text()]
ANALYSES = [p for p in SCRIPTS if "/../setup.sh" in p.read_text() and "--name" in p.read_text()]


def called(script: Path, folder: Path, *flags: str) -> list[str]:
    """What it would run, in a copy whose setup.sh installs nothing."""
    shutil.copytree(ROOT / "scripts/figures", folder / "scripts/figures")
    (folder / "scripts/setup.sh").write_text("set -euo pipefail\n")
    recorder = folder / "fairseq-residuals"
    recorder.write_text('#!/usr/bin/env bash\nprintf "%q " "$@"\n')
    recorder.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "OUT": "there"}
    command = ["bash", str(folder / "scripts/figures" / script.name), *flags]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return shlex.split(run.stdout)


@pytest.mark.parametrize("script", ANALYSES, ids=lambda p: p.stem)
def test_a_figures_command_is_valid(script: Path, tmp_path: Path) -> None:
    args, further = build_parser().parse_known_args(called(script, tmp_path, "--svg"))
    assert (args.name, str(args.out), args.svg) == (script.stem, "there", True)
    if args.command in ("gradients", "change"):
        args.further = further
        sources = models.sources(args)
        assert args.variants == ["all"] or len(sources) == len(args.variants)
        # a model of these flags can be made, in small
        small = arguments("--layers", "1", "--dim", "8", "--heads", "1", "--vocabulary", "9", *further)
        models.build(sources[0], small)
    else:
        assert not further


@pytest.mark.parametrize("flags", [(), ("--paper",)])
def test_the_table_of_speeds_is_by_a_valid_command(flags: tuple[str, ...], tmp_path: Path) -> None:
    command = called(ROOT / "scripts/figures/dlcl_figure4.sh", tmp_path, *flags)
    args, further = build_parser().parse_known_args(command)
    assert args.command == "bench" and not further
    assert ("cuda" in command) == bool(flags)


def test_the_figures_that_need_no_training_are_there() -> None:
    expected = {f"b2t_figure{n}" for n in (2, 3, 4, 7)} | {f"resi_dual_figure{n}" for n in ("1", "2a", "2b", "3")}
    assert {p.stem for p in ANALYSES} >= expected | {"depthwise_lstm_figures1-4", "dlcl_figure1", "dlcl_figure2"}


def test_scripts_of_the_gallery_exist() -> None:
    named = re.findall(r"`(scripts/[\w./-]+)", (ROOT / "docs/GALLERY.md").read_text())
    assert len(named) >= 7 and [name for name in named if not (ROOT / name).is_file()] == []

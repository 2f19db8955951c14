"""scripts/figures: every command that they would run is one that exists, with recipes, architectures and flags that do.

Programs are replaced by one that prints how it was called.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq import options

from fairseq_residuals.__main__ import build_parser
from fairseq_residuals.lab.recipes.rows import as_command_line
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from modern_fairseq.plain_yaml import read_yaml

ROOT = Path(__file__).parent.parent.parent
OURS = (
    *("b2t_figure1", "b2t_figure6", "b2t_figure8", "b2t_figure9", "b2t_figure10", "dlcl_figure3", "dlcl_figure4"),
    *("joeynmt_ppl_lineplot", "depthwise_lstm_tables6_7", "resi_dual_table5", "gallery_diagnose", "debian_translation"),
)
ONLY_POINT_THE_WAY = ("dlcl_figure3", "depthwise_lstm_tables6_7")
"""With --paper they say what to train first."""
PROGRAMS = ("fairseq-train", "fairseq-hydra-train", "fairseq-residuals", "fairseq-generate", "fairseq-preprocess")


def calls(figure: str, folder: Path, *arguments: str, dry: bool = True, status: int = 0) -> list[list[str]]:
    """The commands that a figure's script would run."""
    scripts, programs = folder / "scripts", folder / "programs"
    shutil.copytree(ROOT / "scripts" / "figures", scripts / "figures")
    path = f"{programs}:{Path(sys.executable).parent}:$PATH"
    (scripts / "setup.sh").write_text(f'set -euo pipefail\nROOT="{ROOT}"\nexport PATH="{path}"\n')
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text('#!/usr/bin/env bash\nprintf "%q " "$(basename "$0")" "$@"\necho\n')
        (programs / name).chmod(0o755)
    environment = {
        k: v for k, v in os.environ.items() if k not in ("LAYERS", "UPDATES", "SEEDS", "GAME", "OUT", "DEPTHS")
    }
    ended = subprocess.run(
        ["bash", scripts / "figures" / f"{figure}.sh", *arguments],
        env=environment | ({"DRY_RUN": "1"} if dry else {}),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == status, ended.stderr
    return [shlex.split(line.partition(" > ")[0]) for line in ended.stdout.splitlines()]


def check(command: list[str]) -> None:
    if command[0] == "fairseq-residuals":
        args, further = build_parser().parse_known_args(command[1:])
        assert args.run and set(further) <= {"--share-all-embeddings"}
    elif command[0] == "fairseq-hydra-train":
        assert (ROOT / "configs" / f"{command[command.index('--config-name') + 1]}.yaml").is_file(), command
        for override in command[5:]:
            key, _, value = override.removeprefix("++").partition("=")
            settings = ("checkpoint.save_dir", "common.user_dir", "schedule")
            assert key in settings or key.startswith(("model.", "optimization."))
            assert key != "model._name" or value in ARCHITECTURES
    else:
        assert command[0] == "fairseq-train"
        args = options.parse_args_and_arch(options.get_training_parser(), command[1:])
        assert args.arch in ARCHITECTURES and args.cpu


@pytest.mark.parametrize("figure", OURS)
def test_at_small_scale(figure: str, tmp_path: Path) -> None:
    found = calls(figure, tmp_path)
    assert found
    for command in found:
        check(command)


@pytest.mark.parametrize("figure", sorted(set(OURS) - {*ONLY_POINT_THE_WAY, "gallery_diagnose"}))
def test_at_the_papers(figure: str, tmp_path: Path) -> None:
    found = calls(figure, tmp_path, "--paper")
    assert found
    for command in found:
        check(command)


@pytest.mark.parametrize(("width", "end"), [("128", "_128"), ("512", "")])
def test_the_figure_of_real_text_has_the_rows_of_its_table(
    width: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIDTH", width)
    commands = calls("debian_translation", tmp_path, "--paper")
    trained = [tuple(command[command.index("--config-name") + 1 : -2]) for command in commands]
    table = read_yaml(ROOT / "configs/debian/tables.yaml")["translation"]["rows"]
    names = [f"debian/{config}" for row, config in table.items() if row.startswith(f"18L-18L/{width}/")]
    lines = [as_command_line(ROOT / "configs", name) for name in names]
    assert trained == [(primary, *overrides) for primary, overrides in lines]
    assert len(trained) == 9 and all(name.endswith(end) for name in names)


def test_several_gpus_share_the_papers_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUS", "8")
    commands = [
        command for command in calls("b2t_figure10", tmp_path, "--paper") if command[0] == "fairseq-hydra-train"
    ]
    assert commands
    for command in commands:
        given = dict(item.split("=", 1) for item in command if "=" in item)
        assert given["distributed_training.distributed_world_size"] == "8"
        # 4 batches of 3584 tokens on one device
        assert (given["dataset.max_tokens"], given["optimization.update_freq"]) == (str(4 * 3584 // 8), "[1]")
        assert command[-1].startswith("checkpoint.save_dir=") and "b2t_figure10" in command[-1]


@pytest.mark.parametrize("figure", ONLY_POINT_THE_WAY)
def test_what_has_to_be_trained_first_is_said(figure: str, tmp_path: Path) -> None:
    assert calls(figure, tmp_path, "--paper", status=2) == []


def test_logs_that_exist_are_drawn(tmp_path: Path) -> None:
    (command,) = calls("b2t_figure9", tmp_path, "a.log", "B=b.log", dry=False)
    assert command[:4] == ["fairseq-residuals", "curves", "a.log", "B=b.log"] and "layers" in command
    check(command)

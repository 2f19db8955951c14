"""Mistakes in configurations of fairseq-hydra-train: one sentence, before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fairseq_cli.hydra_train
import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra
from tiny_jobs import TRANSLATION
from yaml_configs import config


def settings(folder: Path) -> dict[str, Any]:
    """A configuration that only lacks its data."""
    return config(TRANSLATION, folder / "data", folder / "save")


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Runs fairseq-hydra-train on the text of a YAML file in this process, and returns what it says."""

    def run(text: str, *overrides: str) -> str:
        (tmp_path / "conf").mkdir(exist_ok=True)
        (tmp_path / "conf/run.yaml").write_text(text)
        (tmp_path / "data").mkdir()
        for language in ("s", "t"):
            (tmp_path / f"data/dict.{language}.txt").write_text("a 1\nb 1\n")
        command = ["fairseq-hydra-train", "--config-dir", str(tmp_path / "conf"), "--config-name", "run"]
        command += [f"hydra.run.dir={tmp_path / 'hydra'}", "hydra.output_subdir=null", "hydra/job_logging=none"]
        monkeypatch.setattr("sys.argv", [*command, "hydra/hydra_logging=none", *overrides])
        monkeypatch.chdir(tmp_path)
        GlobalHydra.instance().clear()
        with pytest.raises(SystemExit) as exit_:
            fairseq_cli.hydra_train.cli_main()
        assert exit_.value.code == 1 and not list(tmp_path.glob("save/*"))
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("fairseq-hydra-train: error: ")
        return line

    # it would reach stderr by handlers of tests before these
    logging.disable(logging.INFO)
    yield run
    logging.disable(logging.NOTSET)


def changed(folder: Path, place: str, value: Any) -> str:
    whole = settings(folder)
    group, _, key = place.partition(".")
    if key:
        whole[group][key] = value
    else:
        whole[group] = value
    return yaml.safe_dump(whole)


VALUES: list[tuple[str, Any, str]] = [
    ("model.dropout", "x", "model.dropout must be a number, not 'x'"),
    ("model.residual", "Pre-LN", "did you mean pre_ln?"),
    (
        "model._name",
        "transformer_b2x_6l",
        "unknown architecture 'transformer_b2x_6l' (did you mean transformer_b2t_6l?)",
    ),
    ("common.user_dir", "/nowhere", "/nowhere"),
]


@pytest.mark.parametrize(("place", "value", "sentence"), VALUES)
def test_values_that_cannot_be(
    place: str, value: Any, sentence: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    assert sentence in refused(changed(tmp_path, place, value))


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("+residual=b2t", "unknown key residual in the configuration (a setting is of a group, as model.dropout is)"),
        ("+optimisation.lr=[1]", "unknown key optimisation in the configuration (did you mean optimization?)"),
    ],
)
def test_overrides_that_cannot_be(override: str, sentence: str, refused: Callable[..., str], tmp_path: Path) -> None:
    assert sentence in refused(yaml.safe_dump(settings(tmp_path)), override)


def test_null_is_no_folder_of_a_plugin(refused: Callable[..., str], tmp_path: Path) -> None:
    text = yaml.safe_dump(settings(tmp_path))
    assert "unknown key residual" in refused(text, "common.user_dir=null", "+residual=b2t")


def test_a_section_for_the_recipe_is_nobodys_mistake(refused: Callable[..., str], tmp_path: Path) -> None:
    whole = settings(tmp_path)
    whole["model"]["residual"] = "Pre-LN"
    assert "did you mean pre_ln?" in refused(yaml.safe_dump(whole), "+recipe.corpus=none")

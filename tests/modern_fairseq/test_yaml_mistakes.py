"""Mistakes in configurations of fairseq-hydra-train: one sentence, before anything is written."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fairseq_cli.hydra_train
import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

PLUGIN = str(Path(__file__).parents[2] / "fairseq_residuals")
STACK = {"layers": 1, "embed_dim": 8, "ffn_embed_dim": 8, "attention_heads": 1}


def settings(folder: Path) -> dict[str, Any]:
    """A configuration that only lacks its data."""
    stacks = {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in STACK.items()}
    return {
        "common": {"user_dir": PLUGIN, "cpu": True, "seed": 7},
        "task": {"_name": "translation", "data": str(folder / "data"), "source_lang": "en", "target_lang": "de"},
        "model": {"_name": "transformer_b2t_6l", "dropout": 0.1} | stacks,
        "criterion": {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "inverse_sqrt", "warmup_updates": 4},
        "dataset": {"num_workers": 0, "batch_size": 4},
        "optimization": {"lr": [0.005], "max_update": 1},
        "checkpoint": {"save_dir": str(folder / "save")},
    }


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Runs fairseq-hydra-train on the text of a YAML file in this process, and returns what it says."""

    def run(text: str | bytes, *overrides: str) -> str:
        (tmp_path / "conf").mkdir(exist_ok=True)
        (tmp_path / "conf/run.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        (tmp_path / "data").mkdir()
        for language in ("en", "de"):
            (tmp_path / f"data/dict.{language}.txt").write_text("a 1\nb 1\n")
        command = ["fairseq-hydra-train", "--config-dir", str(tmp_path / "conf"), "--config-name", "run"]
        command += [f"hydra.run.dir={tmp_path / 'hydra'}", "hydra.output_subdir=null", "hydra/job_logging=none"]
        monkeypatch.setattr("sys.argv", [*command, "hydra/hydra_logging=none", *overrides])
        monkeypatch.chdir(tmp_path)
        GlobalHydra.instance().clear()
        with pytest.raises(SystemExit) as exit_:
            fairseq_cli.hydra_train.cli_main()
        assert exit_.value.code == 1 and not list(tmp_path.glob("save/*"))
        assert "HYDRA_FULL_ERROR" not in os.environ
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("fairseq-hydra-train: error: ")
        return line

    # it would reach stderr by handlers of tests before these
    logging.disable(logging.INFO)
    yield run
    logging.disable(logging.NOTSET)


SYNTAX = {
    "indentation": (b"common:\n  cpu: true\n   seed: 1\n", 'run.yaml", line 3, column'),
    "tag": (b"a: !!python/object/apply:os.system [ls]\n", 'run.yaml", line 1'),
    "character": (b"a: \0\n", "special characters are not allowed"),
    "Latin-1": ("# grün\n".encode("latin-1"), "is not UTF-8 text"),
    "list": (b"- a\n", "'run' must be a DictConfig"),
    "text": (b"train it\n", "Key 'train it' not in"),
    "alias of its own part": (b"a: &a [*a]\n", "run.yaml: an alias stands for what it is part of"),
    "aliases of aliases": (
        b"a0: &a0 [1, 1]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (i + 1, i + 1, i, i) for i in range(60)),
        "run.yaml: its aliases stand for more than 100,000 values",
    ),
    "nothing": (b"", "the configuration has no task"),
}


@pytest.mark.parametrize("mistake", SYNTAX)
def test_files_that_are_no_configuration(mistake: str, refused: Callable[..., str]) -> None:
    text, sentence = SYNTAX[mistake]
    assert sentence in refused(text)


def changed(folder: Path, place: str, value: Any) -> str:
    whole = settings(folder)
    group, _, key = place.partition(".")
    if key:
        whole[group][key] = value
    else:
        whole[group] = value
    return yaml.safe_dump(whole)


VALUES: list[tuple[str, Any, str]] = [
    ("optimisation", 1, "optimisation"),
    ("model.dropout", "x", "model.dropout must be a number, not 'x'"),
    ("model.residual", "Pre-LN", "did you mean pre_ln?"),
    ("model._name", "transformer_b2x_6l", "unknown model 'transformer_b2x_6l' (did you mean transformer_b2t_6l?)"),
    ("model._name", None, "has no model"),
    ("task", 3, "has no task"),
    ("task._name", "translatoin", "unknown task 'translatoin' (did you mean translation?)"),
    ("task.data", "${oc.env:NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE"),
    ("criterion._name", "cross_entropi", "unknown criterion 'cross_entropi' (did you mean cross_entropy?)"),
    ("criterion.label_smoothing", "high", "label_smoothing: Value 'high'"),
    ("optimizer._name", "adma", "unknown optimizer 'adma' (did you mean"),
    ("optimizer", [1], "has no optimizer"),
    ("lr_scheduler._name", "inverse", "unknown lr_scheduler 'inverse'"),
    ("optimization.max_update", "many", "optimization.max_update: Value 'many'"),
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
        ("common.sead=1", "sead"),
        ("+residual=b2t", "unknown key residual in the configuration (a setting is of a group, as model.dropout is)"),
        ("+optimisation.lr=[1]", "unknown key optimisation in the configuration (did you mean optimization?)"),
        ("model.dropout=[1", "no viable alternative at input '[1'"),
    ],
)
def test_overrides_that_cannot_be(override: str, sentence: str, refused: Callable[..., str], tmp_path: Path) -> None:
    assert sentence in refused(yaml.safe_dump(settings(tmp_path)), override)


def test_a_configuration_that_is_not_there(refused: Callable[..., str]) -> None:
    assert "/nowhere" in refused("", "--config-dir", "/nowhere")


def test_a_section_for_the_recipe_is_nobodys_mistake(refused: Callable[..., str], tmp_path: Path) -> None:
    whole = settings(tmp_path)
    whole["optimizer"] = {"_name": "adma"}
    assert "unknown optimizer 'adma'" in refused(yaml.safe_dump(whole), "+recipe.corpus=none")

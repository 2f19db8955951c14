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
    "indentation": (b"common:\n  cpu: true\n   seed: 1\n", "run.yaml, line 3, column"),
    "indentation to the left": (b"common:\n    cpu: true\n  seed: 1\n", "run.yaml, line 3, column"),
    "tab": (b"common:\n\tcpu: true\n", "run.yaml, line 2, column 1"),
    "bracket": (b"optimization: {lr: [1\n", "run.yaml, line 2"),
    "two colons": (b"common seed: 1: 2\n", "run.yaml, line 1"),
    "repeated key": (b"common: {seed: 1}\ncommon: {seed: 3}\n", "duplicate key common"),
    "tag": (b"a: !!python/object/apply:os.system [ls]\n", "run.yaml, line 1"),
    "character": (b"a: \0\n", "run.yaml: special characters are not allowed"),
    "Latin-1": ("# grün\n".encode("latin-1"), "is not UTF-8 text"),
    "list": (b"- a\n", "'run' must be a DictConfig"),
    "text": (b"train it\n", "unknown key train it in the configuration"),
    "alias of its own part": (b"a: &a [*a]\n", "run.yaml: an alias stands for what it is part of"),
    "aliases of aliases": (
        b"a0: &a0 [1, 1]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (i + 1, i + 1, i, i) for i in range(60)),
        "run.yaml: its aliases stand for more than 100,000 values",
    ),
    "alias": (b"common: &c {seed: 1}\nno_key: *c\n", "unknown key no_key"),
    "nothing": (b"", "has no task, no model"),
}


@pytest.mark.parametrize("mistake", SYNTAX)
def test_files_that_are_no_configuration(mistake: str, refused: Callable[..., str]) -> None:
    text, sentence = SYNTAX[mistake]
    assert sentence in refused(text)


KEYS = {
    "optimisation": ("in the configuration", "optimization"),
    "common.sead": ("under common", "seed"),
    "checkpoint.save_dirs": ("under checkpoint", "save_dir"),
    "dataset.batchsize": ("under dataset", "batch_size"),
    "optimization.max_updates": ("under optimization", "max_update"),
    "task.sources_lang": ("under task", "source_lang"),
    "criterion.label_smoothin": ("under criterion", "label_smoothing"),
    "optimizer.adam_beta": ("under optimizer", "adam_betas"),
    "lr_scheduler.warmup_update": ("under lr_scheduler", "warmup_updates"),
    "model.dropuot": ("under model", "dropout"),
}


def changed(folder: Path, place: str, value: Any) -> str:
    whole = settings(folder)
    group, _, key = place.partition(".")
    if key:
        whole[group][key] = value
    else:
        whole[group] = value
    return yaml.safe_dump(whole)


@pytest.mark.parametrize("place", KEYS)
def test_keys_that_are_mistyped(place: str, refused: Callable[..., str], tmp_path: Path) -> None:
    where, meant = KEYS[place]
    line = refused(changed(tmp_path, place, 1))
    assert f"unknown key {place.rpartition('.')[2]} {where}" in line
    assert f"did you mean {meant}?" in line and "; valid: " in line


VALUES: list[tuple[str, Any, str]] = [
    ("model.dropout", "x", "model.dropout must be a number, not 'x'"),
    ("model.residual", 3, "model.residual must be the name of a variant, not 3"),
    ("model.residual_args", [1], "model.residual_args must be text, such as init_scale=0.5, or a mapping"),
    ("model.residual_args", "a", "has no option 'a'"),
    ("model.residual", "Pre-LN", "did you mean pre_ln?"),
    ("model.encoder_layers", "six", "model.encoder_layers must be a whole number, not 'six'"),
    ("model.encoder_layers", 1.5, "model.encoder_layers must be a whole number, not 1.5"),
    ("model.share_all_embeddings", "maybe", "model.share_all_embeddings must be true or false"),
    ("model.encoder", 3, "encoder under model must hold keys"),
    ("model", [1], "model must be a mapping with a _name"),
    ("model", "transformer_b2t_6l", "model must be a mapping with a _name"),
    ("model._name", "transformer_b2x_6l", "unknown model 'transformer_b2x_6l' (did you mean transformer_b2t_6l?)"),
    ("model._name", None, "model._name is missing"),
    ("task", 3, "task must be a mapping with a _name"),
    ("task", "translation", "task.data is missing"),
    ("task._name", "translatoin", "unknown task 'translatoin' (did you mean translation?)"),
    ("task.data", None, "task.data is missing"),
    ("task.data", "???", "task.data is missing"),
    ("task.data", 3, "the data folder 3 does not exist"),
    ("task.data", "${oc.env:NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE"),
    ("task.data", "${nowhere}", "'nowhere' not found"),
    ("criterion._name", "cross_entropi", "unknown criterion 'cross_entropi' (did you mean cross_entropy?)"),
    ("criterion.label_smoothing", "high", "criterion.label_smoothing: Value 'high'"),
    ("criterion", 3, "criterion must be a mapping with a _name"),
    ("optimizer._name", "adma", "unknown optimizer 'adma' (did you mean"),
    ("optimizer", [1], "optimizer must be a mapping with a _name"),
    ("optimizer.lr", "x", "optimizer.lr: it must be a list, such as [1]"),
    ("lr_scheduler._name", "inverse", "unknown lr_scheduler 'inverse'"),
    ("lr_scheduler", 3, "lr_scheduler must be a mapping with a _name"),
    ("lr_scheduler.warmup_updates", "x", "lr_scheduler.warmup_updates: Value 'x'"),
    ("optimization.lr", 0.1, "optimization.lr: it must be a list, such as [1]"),
    ("optimization.max_update", "many", "optimization.max_update: Value 'many'"),
    ("dataset.batch_size", 4.5, "dataset.batch_size: Value '4.5'"),
    ("dataset", [1], "list is not a subclass of DatasetConfig"),
    ("common", 3, "int is not a subclass of CommonConfig"),
    ("common.seed", "x", "common.seed: Value 'x'"),
    ("common.fp16", "maybe", "common.fp16: Value 'maybe' is not a valid bool"),
    ("common.log_format", "xml", "expected one of [json, none, simple, tqdm]"),
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
        ("common.sead=1", "unknown key sead under common (did you mean seed?)"),
        (
            "model.dropuot=1",
            "model.dropuot: the configuration has no such key; if it is spelt rightly, add it with a plus",
        ),
        ("model.residual=pre_ln", "add it with a plus: +model.residual=..."),
        ("+model.dropuot=1", "unknown key dropuot under model (did you mean dropout?)"),
        ("modle=transformer", "unknown key modle in the configuration (did you mean model?)"),
        ("model.dropout=x", "model.dropout must be a number"),
        ("+residual=b2t", "unknown key residual in the configuration (a setting is of a group, as model.residual is)"),
        ("+max_update=1", "in the configuration (a setting is of a group, as optimization.max_update is); valid: bmuf"),
        ("+optimisation.lr=[1]", "unknown key optimisation in the configuration (did you mean optimization?)"),
        ("model.dropout=[1", "no viable alternative at input '[1'"),
        ("+a", "missing EQUAL"),
    ],
)
def test_overrides_that_cannot_be(override: str, sentence: str, refused: Callable[..., str], tmp_path: Path) -> None:
    assert sentence in refused(yaml.safe_dump(settings(tmp_path)), override)


def test_a_configuration_that_is_not_there(refused: Callable[..., str]) -> None:
    assert "/nowhere" in refused("", "--config-dir", "/nowhere")


def test_an_unknown_name_of_a_configuration(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "conf/small").mkdir(parents=True)
    (tmp_path / "conf/small/test.yaml").write_text("")
    line = refused("", "--config-name", "rnu")
    assert f"{tmp_path / 'conf'} has no configuration rnu (did you mean run?); valid: run, small/test" in line


def test_a_configuration_in_a_folder_of_the_folder(refused: Callable[..., str], tmp_path: Path) -> None:
    """fairseq's schema has no folder in its name, so such a file gets no default settings."""
    (tmp_path / "conf/small").mkdir(parents=True)
    (tmp_path / "conf/small/test.yaml").write_text("# @package _global_\n" + yaml.safe_dump(settings(tmp_path)))
    assert "let --config-dir name the folder that the file is in" in refused("", "--config-name", "small/test")


def test_a_section_for_the_recipe_is_nobodys_mistake(refused: Callable[..., str], tmp_path: Path) -> None:
    whole = settings(tmp_path)
    whole["optimizer"] = {"_name": "adma"}
    assert "unknown optimizer 'adma'" in refused(yaml.safe_dump(whole), "+recipe.corpus=none")

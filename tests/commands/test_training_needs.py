"""RAdam, T-Fixup's schedule, word dropout and --log-residual-stats in real runs, by flags and by YAML."""

from __future__ import annotations

import math

import pytest
from rotation import rotated
from running import (
    argv_of,
    assert_one_sentence,
    assert_same_weights,
    execute,
    files_under,
    load,
    succeed,
    weights,
)
from tiny import NO_DROPOUT
from tiny_jobs import TRANSLATION
from yaml_configs import config, hydra_argv

UPDATES = 6
EVERY = 2
LR, PERIOD = 0.005, 3
OPTIMIZER = [
    *("--optimizer", "radam", "--adam-betas", "(0.9, 0.98)", "--weight-decay", "0.01", "--lr", str(LR)),
    *("--lr-scheduler", "inverse_sqrt_nowarmup", "--decay-period", str(PERIOD)),
]
MODEL = ["--residual", "dlcl_post", "--encoder-word-dropout", "0.2", "--decoder-word-dropout", "0.3"]
STATS = ["--log-residual-stats", str(EVERY)]
LENGTH = ["--max-update", str(UPDATES), "--no-epoch-checkpoints"]


@pytest.fixture(scope="module")
def whole(once, data_of):
    """The folder and the log of a run by flags."""
    flags = [*OPTIMIZER, *MODEL, *STATS, *LENGTH]
    return once(
        "training_needs",
        lambda folder: succeed("fairseq-train", *TRANSLATION.train_flags(data_of(TRANSLATION), folder), *flags),
    )


def logged(run):
    """By update, what was logged about it, times left out."""
    left_out = ("wps", "ups", "wall", "train_wall")
    return {
        int(r["num_updates"]): {k: v for k, v in r.items() if k not in left_out} for r in run.records("train_inner")
    }


def stats_in(record):
    return {name: value for name, value in record.items() if name.startswith(("gnorm/", "learned/"))}


def test_statistics_are_logged_on_every_nth_update(whole):
    folder, run = whole
    records = logged(run)
    assert [n for n in records if stats_in(records[n])] == [2, 4, 6]
    assert None not in [value for record in records.values() for value in record.values()]
    names = {f"{stack}.layers.{name}" for stack in ("encoder", "decoder") for name in ("0", "1", "wiring")}
    last = stats_in(records[UPDATES])
    norms = {name: value for name, value in last.items() if name.startswith("gnorm/")}
    assert set(norms) == {f"gnorm/{name}" for name in names}
    # the embeddings have the rest of the whole gradient
    assert 0.1 * records[UPDATES]["gnorm"] < math.hypot(*norms.values()) < records[UPDATES]["gnorm"]
    saved = weights(load(folder / "checkpoint_last.pt"))
    for stack in ("encoder", "decoder"):
        name = f"{stack}.layers.wiring.weight"
        for i, row in enumerate(saved[name].squeeze(-1).tolist()):
            for j, value in enumerate(row):
                assert last.get(f"learned/{name}.{i}.{j}", 0.0) == pytest.approx(value, rel=1e-5)


def test_stopped_and_resumed_by_yaml(whole, data_of, tmp_path):
    settings = config(TRANSLATION, data_of(TRANSLATION), tmp_path / "save")
    settings["optimizer"] = {"_name": "radam", "adam_betas": [0.9, 0.98], "weight_decay": 0.01}
    settings["lr_scheduler"] = {"_name": "inverse_sqrt_nowarmup", "decay_period": PERIOD}
    settings["model"] |= {"residual": "dlcl_post", "log_residual_stats": EVERY}
    settings["model"] |= {"encoder_word_dropout": 0.2, "decoder_word_dropout": 0.3}
    records = {}
    for last in (3, UPDATES):
        settings["optimization"] = {"lr": [LR], "max_update": last}
        run = execute(hydra_argv(settings, tmp_path), cwd=tmp_path)
        assert run.status == 0, run
        records |= logged(run)
    assert "epoch 1 @ 3 updates" in run.out
    folder, expected = whole
    assert records == logged(expected)
    assert_same_weights(folder, tmp_path / "save")
    stored = load(tmp_path / "save" / "checkpoint_last.pt")["cfg"]["model"]
    keys = ("encoder_word_dropout", "decoder_word_dropout", "log_residual_stats")
    assert [stored[key] for key in keys] == [0.2, 0.3, EVERY]


def test_two_processes_log_the_gradients_of_both(data_of, tmp_path):
    """The same as one process that accumulates the batches of both; see test_processes.py."""
    sgd = ["--optimizer", "sgd", "--lr", "0.3", "--lr-scheduler", "fixed", "--clip-norm", "0.1"]
    flags = [*NO_DROPOUT, *sgd, "--residual", "dlcl_post", *STATS, "--max-update", "4", "--no-epoch-checkpoints"]
    runs = []
    for more in (["--update-freq", "2"], ["--distributed-world-size", "2"]):
        save_dir = tmp_path / more[0].strip("-")
        runs.append(
            logged(succeed("fairseq-train", *TRANSLATION.train_flags(data_of(TRANSLATION), save_dir), *flags, *more))
        )
    one, two = runs
    for n in (2, 4):
        expected = stats_in(one[n])
        assert len(expected) == 18
        assert stats_in(two[n]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("betas", "optimizer"), rotated(["0.9", "(0.9", "(0.9, 1.0)"], ["adam", "fused_adam"]))
def test_wrong_betas_are_one_sentence(betas, optimizer, data_of, tmp_path):
    flags = [*TRANSLATION.train_flags(data_of(TRANSLATION), tmp_path), *OPTIMIZER, *LENGTH]
    flags += ["--optimizer", optimizer, "--adam-betas", betas]
    run = execute(argv_of("fairseq-train", *flags))
    said = "is not read: it is no value as Python writes it" if betas == "(0.9" else "--adam-betas must be two numbers"
    assert_one_sentence(run, said, betas)
    assert not files_under(tmp_path)

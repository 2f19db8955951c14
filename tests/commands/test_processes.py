"""Two processes on CPU train as one process does with --update-freq 2.

fairseq puts the batches of an epoch in one order for all processes and deals them out in turn: with two
processes each update sees batches 2k and 2k+1, exactly what one process accumulates with --update-freq 2.
For the rest to be equal there is no dropout (each process draws its own) and plain SGD (Adam would blow up
rounding errors where a gradient is nothing else: the biases of the keys). The last batch of an epoch has no
partner: the process without one computes on a dummy batch that must not count.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from fairseq.checkpoint_utils import load_model_ensemble
from running import BIN, argv_of, assert_same_weights, execute
from tiny import NO_DROPOUT
from tiny_jobs import SPEECH, TRANSLATION, WIKI103
from yaml_configs import config, hydra_argv

from fairseq_residuals.wirings.admin_measurement import unprofiled
from tests.rotation import rotated

JOBS = (TRANSLATION, WIKI103, SPEECH)
OPTIMIZER = ["--optimizer", "sgd", "--lr", "0.3", "--lr-scheduler", "fixed", "--clip-norm", "1.0"]
UPDATES = 8
"""More than an epoch, which has 5 or 6."""


def train(argv, job, data, save_dir, *more, updates=UPDATES, fresh=False):
    adaptive = ["--adaptive-softmax-dropout", "0"] if job is WIKI103 else []
    length = ["--max-update", str(updates), "--no-epoch-checkpoints"]
    flags = [*job.train_flags(data, save_dir), *NO_DROPOUT, *adaptive, *OPTIMIZER, *length, *more]
    run = execute([*argv, *flags], fresh=fresh)
    assert run.status == 0, run
    return run


@pytest.fixture(scope="module")
def accumulated(once, data_of):
    """One process that takes two batches per update: its checkpoints and its log."""

    def one_process(job):
        argv, data = argv_of("fairseq-train"), data_of(job)
        return once(f"accumulated_{job.name}", lambda folder: train(argv, job, data, folder, "--update-freq", "2"))

    return one_process


@pytest.mark.parametrize(
    ("launcher", "job"), rotated(("spawner", "torchrun"), JOBS), ids=lambda part: getattr(part, "name", part)
)
def test_two_processes_train_as_one_does(launcher, job, accumulated, data_of, tmp_path):
    folder, one = accumulated(job)
    if launcher == "spawner":
        argv, more = argv_of("fairseq-train"), ["--distributed-world-size", "2"]
    else:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        argv, more = [sys.executable, *torchrun, str(BIN / "fairseq-train")], []
    # elsewhere they are forked, see warm_processes.py
    two = train(argv, job, data_of(job), tmp_path, *more, fresh=job is TRANSLATION)
    assert one.losses[-1] < one.losses[0]
    assert_same_training(one, two, range(1, UPDATES + 1))
    valid = [r["valid_loss"] for r in one.records("valid")]
    assert [r["valid_loss"] for r in two.records("valid")] == pytest.approx(valid, abs=ROUNDING)
    assert_same_weights(folder, tmp_path, atol=1e-5)


def test_the_loss_in_chunks(accumulated, data_of, tmp_path):
    """It uses the output projection outside of the model's forward, where DistributedDataParallel does not see it."""
    folder, one = accumulated(TRANSLATION)
    flags = ("--distributed-world-size", "2", "--criterion", "chunked_label_smoothed_cross_entropy")
    two = train(argv_of("fairseq-train"), TRANSLATION, data_of(TRANSLATION), tmp_path, *flags)
    assert_same_training(one, two, range(1, UPDATES + 1))
    assert_same_weights(folder, tmp_path, atol=1e-5)


def test_packed_batches_train_as_padded_ones_do(accumulated, data_of, tmp_path):
    """By two processes, which resume in the middle of an epoch, beside one process that pads."""
    folder, one = accumulated(TRANSLATION)
    argv, data = argv_of("fairseq-train", "--distributed-world-size", "2"), data_of(TRANSLATION)
    train(argv, TRANSLATION, data, tmp_path, "--packed", updates=4)
    packed = train(argv, TRANSLATION, data, tmp_path, "--packed")
    assert_same_training(one, packed, range(5, UPDATES + 1))
    assert_same_weights(folder, tmp_path, atol=1e-5)


@pytest.mark.parametrize("job", (WIKI103, SPEECH), ids=lambda job: job.name)
def test_so_do_those_with_text_on_one_side(job, accumulated, data_of, tmp_path):
    folder, one = accumulated(job)
    packed = train(argv_of("fairseq-train"), job, data_of(job), tmp_path, "--packed", "--update-freq", "2")
    assert_same_training(one, packed, range(1, UPDATES + 1), devices=1)
    valid = [r["valid_loss"] for r in one.records("valid")]
    assert [r["valid_loss"] for r in packed.records("valid")] == pytest.approx(valid, abs=ROUNDING)
    assert_same_weights(folder, tmp_path, atol=1e-5)


def test_hydra_spawns_as_well(accumulated, data_of, tmp_path):
    folder, one = accumulated(TRANSLATION)
    settings = config(TRANSLATION, data_of(TRANSLATION), tmp_path / "save")
    settings["model"] |= {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    # without a dataclass in fairseq, hence without defaults
    settings["optimizer"] = {"_name": "sgd", "lr": [0.3], "momentum": 0.0, "weight_decay": 0.0}
    settings["lr_scheduler"] = {"_name": "fixed"}
    settings["optimization"] = {"lr": [0.3], "clip_norm": 1.0, "max_update": UPDATES}
    settings["distributed_training"] = {"distributed_world_size": 2}
    two = execute(hydra_argv(settings, tmp_path), cwd=tmp_path)
    assert two.status == 0, two
    assert_same_training(one, two, range(1, UPDATES + 1))
    assert_same_weights(folder, tmp_path / "save", atol=1e-5)


def test_admin_starts_from_the_same_omegas(data_of, tmp_path):
    """Those of the first batch, which one process with --update-freq 2 profiles too; loading measures nothing."""
    job = replace(TRANSLATION, name="admin_translation", arch="transformer_admin_6l")
    data, argv = data_of(job), argv_of("fairseq-train")
    one = train(argv, job, data, tmp_path / "one", "--update-freq", "2", updates=4)
    assert one.out.count("profiled the first batch") == 2  # encoder and decoder
    two = train([*argv, "--distributed-world-size", "2"], job, data, tmp_path / "two", updates=4)
    assert_same_training(one, two, range(1, 5))
    assert_same_weights(tmp_path / "one", tmp_path / "two")
    (model,), _ = load_model_ensemble([str(tmp_path / "two" / "checkpoint_last.pt")])
    assert not unprofiled(model)


ROUNDING = 0.0015
"""fairseq logs 3 decimals."""


def assert_same_training(one, two, updates, devices=2):
    assert f"training on {devices} devices" in two.out
    assert sorted(two.updates) == list(updates)
    for number, found in two.updates.items():
        logged = one.updates[number]
        assert (found["bsz"], found["wpb"]) == (logged["bsz"], logged["wpb"]), number
        assert found["loss"] == pytest.approx(logged["loss"], abs=ROUNDING), number
        assert found["gnorm"] == pytest.approx(logged["gnorm"], abs=ROUNDING), number

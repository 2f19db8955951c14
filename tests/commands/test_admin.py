"""Admin as it is trained: profiled by the first batch, also that of several processes."""

from __future__ import annotations

from dataclasses import replace

from fairseq.checkpoint_utils import load_model_ensemble
from running import argv_of, assert_one_sentence, execute, files_under
from test_processes import assert_same_training, assert_same_weights, train
from tiny_jobs import TRANSLATION

from fairseq_residuals.wirings.admin_measurement import unprofiled

JOB = replace(TRANSLATION, name="admin_translation", arch="transformer_admin_6l")
UPDATES = 4


def test_two_processes_start_from_the_same_omegas(data_of, tmp_path):
    """Those of the first batch, which one process with --update-freq 2 profiles too; loading measures nothing."""
    data, argv = data_of(JOB), argv_of("fairseq-train")
    one = train(argv, JOB, data, tmp_path / "one", "--update-freq", "2", updates=UPDATES)
    assert one.out.count("profiled the first batch") == 2  # encoder and decoder
    two = train([*argv, "--distributed-world-size", "2"], JOB, data, tmp_path / "two", updates=UPDATES)
    assert_same_training(one, two, range(1, UPDATES + 1))
    assert_same_weights(tmp_path / "one", tmp_path / "two")
    (model,), _ = load_model_ensemble([str(tmp_path / "two" / "checkpoint_last.pt")])
    assert not unprofiled(model)


def test_training_does_not_begin_with_a_file(data_of, tmp_path):
    flags = [*JOB.train_flags(data_of(JOB), tmp_path / "save"), "--residual-args", "profile=nowhere.json"]
    run = execute(argv_of("fairseq-train", *flags), cwd=tmp_path)
    assert_one_sentence(run, "profile=nowhere.json: files of omegas are read no more; valid: auto, the first batch")
    assert files_under(tmp_path) == [] and "epoch 001" not in run.out

"""Admin as it is trained: profiled by the command, by the first batch, by the first batch of several processes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fairseq.checkpoint_utils import load_model_ensemble
from running import argv_of, assert_one_sentence, execute, files_under, load
from test_processes import assert_same_training, assert_same_weights, train
from tiny_jobs import LANGUAGE_MODEL, SPEECH, TRANSLATION

from fairseq_residuals.__main__ import main
from fairseq_residuals.wirings.admin_measurement import unprofiled

JOBS = tuple(
    replace(job, name=f"admin_{job.name}", arch=arch)
    for job, arch in (
        (TRANSLATION, "transformer_admin_6l"),
        (LANGUAGE_MODEL, "transformer_lm_admin_6l"),
        (SPEECH, "s2t_transformer_admin_s"),
    )
)
STILL = ("--optimizer", "sgd", "--lr", "1e-12", "--lr-scheduler", "fixed", "--max-update", "1")
UPDATES = 4


@pytest.fixture(scope="module")
def profile_of(once, data_of):
    """What profile-admin writes with the flags that a job is trained with."""

    def profile(job, *more):
        def make(folder):
            out = ["--out", str(folder / "omegas.json")]
            assert main(["profile-admin", *job.train_flags(data_of(job), folder / "save"), *more, *out]) == 0
            assert [path.name for path in files_under(folder)] == ["omegas.json"]
            return json.loads((folder / "omegas.json").read_text())

        return once(f"profile_{job.name}_{'_'.join(more)}", make)

    return profile


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_the_command_measures_what_training_does(job, profile_of, data_of, tmp_path):
    """With dropout, on the first batch of a shuffled epoch: the same weights, batch and random numbers."""
    _, measured = profile_of(job)
    run = execute(argv_of("fairseq-train", *job.train_flags(data_of(job), tmp_path), *STILL))
    assert run.status == 0, run
    trained = load(tmp_path / "checkpoint_last.pt")["model"]
    connections = {"self": "self_attn_connection", "cross": "encoder_attn_connection", "ffn": "ffn_connection"}
    compared = 0
    for stack, layers in measured["omegas"].items():
        inside = "transformer_layers" if job.task[1] == "speech_to_text" and stack == "encoder" else "layers"
        for i, layer in enumerate(layers):
            for kind, omega in layer.items():
                value = trained[f"{stack}.{inside}.{i}.{connections[kind]}.omega"]
                assert value.tolist() == pytest.approx([omega] * 16, rel=1e-6), (stack, i, kind)
                compared += 1
    assert compared == sum(name.endswith(".omega") for name in trained) >= 4
    assert measured["measured_with"]["batches"] == 1 and measured["measured_with"]["tokens"] > 0
    assert max(omega for layers in measured["omegas"].values() for layer in layers for omega in layer.values()) > 1.2


def test_two_processes_start_from_the_same_omegas(data_of, profile_of, tmp_path):
    """Those of the first batch, which one process with --update-freq 2 profiles too; and the file of the command gives
    the same, and is not needed to load what was trained from it."""
    job = JOBS[0]
    data, argv = data_of(job), argv_of("fairseq-train")
    one = train(argv, job, data, tmp_path / "one", "--update-freq", "2", updates=UPDATES)
    assert one.out.count("profiled the first batch") == 2  # encoder and decoder
    two = train([*argv, "--distributed-world-size", "2"], job, data, tmp_path / "two", updates=UPDATES)
    assert_same_training(one, two, range(1, UPDATES + 1))
    assert_same_weights(tmp_path / "one", tmp_path / "two")

    out = tmp_path / "omegas.json"
    none = ["--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0"]
    assert main(["profile-admin", *job.train_flags(data, tmp_path / "none"), *none, "--out", str(out)]) == 0
    file = train(
        argv, job, data, tmp_path / "file", "--update-freq", "2", "--residual-args", f"profile={out}", updates=2
    )
    assert file.updates.items() <= one.updates.items()
    assert "profiled the first batch" not in file.out
    out.unlink()
    models, _ = load_model_ensemble([str(tmp_path / run / "checkpoint_last.pt") for run in ("file", "two")])
    assert len(models) == 2 and not any(map(unprofiled, models))


def test_several_batches(profile_of):
    job = JOBS[0]
    (_, one), (_, three) = profile_of(job), profile_of(job, "--batches", "3")
    assert three["measured_with"]["batches"] == 3
    assert three["measured_with"]["tokens"] > one["measured_with"]["tokens"]
    assert three["omegas"]["encoder"][0]["self"] == 1.0
    assert three["omegas"] != one["omegas"]
    assert three["omegas"]["decoder"][1]["ffn"] == pytest.approx(one["omegas"]["decoder"][1]["ffn"], rel=0.2)


def test_training_does_not_begin_without_the_file(data_of, tmp_path):
    job = JOBS[0]
    flags = [*job.train_flags(data_of(job), tmp_path / "save"), *STILL, "--residual-args", "profile=nowhere.json"]
    run = execute(argv_of("fairseq-train", *flags), cwd=tmp_path)
    assert_one_sentence(run, "profile=nowhere.json: No such file or directory; valid: auto, or a file")
    assert files_under(tmp_path) == [] and "epoch 001" not in run.out


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["--arch", "transformer_post_ln_6l"], "the model of --arch transformer_post_ln_6l has no omegas to profile"),
        (["--batches", "0"], "--batches must be at least 1, not 0"),
        (["--batches", "12"], "--batches 12 is more than the training data have: 11"),
        (["--out", "no_folder/omegas.json"], "there is no folder no_folder to write omegas.json to"),
        (["--out", "."], ". is a folder; give the name of a file to write"),
        (["--residual", "admi"], "unknown wiring 'admi' (did you mean admin?)"),
        (["--source-lang", "x"], "it has no dict.x.txt, which fairseq-preprocess makes"),
    ],
)
def test_mistakes(changes, sentence, data_of, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = [*JOBS[0].train_flags(data_of(JOBS[0]), tmp_path / "save"), "--out", "omegas.json", *changes]
    assert main(["profile-admin", *flags]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fairseq-residuals profile-admin: error: ") and error.count("\n") == 1
    assert sentence in error
    assert files_under(tmp_path) == []


def test_unknown_flags(data_of, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["profile-admin", *JOBS[0].train_flags(data_of(JOBS[0]), "save"), "--out", "x.json", "--no-such-flag"])
    assert ended.value.code == 2
    assert "fairseq-residuals profile-admin: error: unrecognized arguments: --no-such-flag" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["list", "--no-such-flag"])
    assert ended.value.code == 2 and "unrecognized arguments: --no-such-flag" in capsys.readouterr().err

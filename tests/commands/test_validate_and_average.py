"""fairseq-validate and ``fairseq-residuals average`` for each task."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from running import argv_of, assert_one_sentence, execute, files_under, load, succeed
from tiny_jobs import LANGUAGE_MODEL, SAVE_EVERY, TRANSLATION, UPDATES


def validated(job, data, checkpoint):
    """What fairseq-validate logs about the valid set."""
    flags = job.use_flags(data, checkpoint)
    return succeed("fairseq-validate", *flags, "--valid-subset", "valid", "--log-format", "json").records("valid")[-1]


def test_validate_gives_the_loss_that_training_logged(job, data_of, trained):
    folder, run = trained(job)
    logged = run.records("valid")[-1]
    assert logged["valid_num_updates"] == UPDATES
    found = validated(job, data_of(job), folder / "checkpoint_last.pt")
    assert found["valid_loss"] == pytest.approx(logged["valid_loss"], abs=0.0015)
    assert found["valid_ppl"] == pytest.approx(logged["valid_ppl"], abs=0.015)


def newest(folder, pattern, number):
    """The ``number`` checkpoints of a glob that were trained longest."""
    return sorted(folder.glob(pattern), key=lambda p: int(p.stem.split("_")[-1].removeprefix("checkpoint")))[-number:]


def assert_mean(average, parts):
    """Every tensor of ``average`` is the mean of that tensor in ``parts``."""
    states = [load(path)["model"] for path in parts]
    assert set(average) == set(states[0])
    for name, tensor in average.items():
        if name.endswith((".version", "._float_tensor")):
            continue
        expected = np.mean([state[name].double().numpy() for state in states], axis=0)
        np.testing.assert_allclose(tensor.double().numpy(), expected, rtol=1e-6, atol=1e-7, err_msg=name)
    assert any(not np.array_equal(average[n].numpy(), states[-1][n].numpy()) for n in average)


def test_average_of_the_last_updates_is_their_mean_and_usable(job, data_of, trained, tmp_path):
    folder, _ = trained(job)
    parts = newest(folder, "checkpoint_*_*.pt", 3)
    assert [int(p.stem.split("_")[-1]) for p in parts][-1] == UPDATES
    output = tmp_path / "average.pt"
    flags = ["--inputs", folder, "--num-update-checkpoints", 3, "--output", output]
    run = succeed("fairseq-residuals", "average", *flags)
    assert all(part.name in run.out for part in parts), run
    assert_mean(load(output)["model"], parts)
    loss = validated(job, data_of(job), output)["valid_loss"]
    assert np.isfinite(loss)
    assert loss != validated(job, data_of(job), parts[-1])["valid_loss"]


def test_average_of_epochs_and_of_named_files(data_of, trained, tmp_path):
    folder, _ = trained(TRANSLATION)
    epochs = newest(folder, "checkpoint[0-9].pt", 2)
    succeed(
        "fairseq-residuals",
        "average",
        "--inputs",
        folder,
        "--num-epoch-checkpoints",
        2,
        "--output",
        tmp_path / "e.pt",
    )
    assert_mean(load(tmp_path / "e.pt")["model"], epochs)
    named = [folder / f"checkpoint_1_{SAVE_EVERY}.pt", folder / "checkpoint2.pt"]
    succeed("fairseq-residuals", "average", "--inputs", *named, "--output", tmp_path / "n.pt")
    assert_mean(load(tmp_path / "n.pt")["model"], named)


@pytest.mark.parametrize("case", ["too many", "no such file", "other model", "not a checkpoint"])
def test_average_refuses(case, trained, tmp_path):
    folder, _ = trained(TRANSLATION)
    other = trained(LANGUAGE_MODEL)[0] / "checkpoint_last.pt"
    last, junk, output = folder / "checkpoint_last.pt", tmp_path / "junk.pt", tmp_path / "average.pt"
    junk.write_bytes(pickle.dumps(["no", "tensors"]))
    flags, named = {
        "too many": (["--inputs", folder, "--num-update-checkpoints", 30], str(folder)),
        "no such file": (["--inputs", last, folder / "absent.pt"], "absent.pt"),
        "other model": (["--inputs", last, other], str(other)),
        "not a checkpoint": (["--inputs", last, junk], "junk.pt"),
    }[case]
    run = execute(argv_of("fairseq-residuals", "average", *flags, "--output", output))
    assert_one_sentence(run, named)
    assert files_under(tmp_path) == [junk]

"""fairseq-validate and ``fairseq-residuals average`` for each task."""

from __future__ import annotations

import numpy as np
import pytest
from running import argv_of, assert_one_sentence, execute, files_under, load, succeed
from tiny_jobs import LANGUAGE_MODEL, TRANSLATION, UPDATES


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


def test_average_of_different_models_is_refused(trained, tmp_path):
    one, other = (trained(job)[0] / "checkpoint_last.pt" for job in (TRANSLATION, LANGUAGE_MODEL))
    flags = ["average", "--inputs", one, other, "--output", tmp_path / "average.pt"]
    run = execute(argv_of("fairseq-residuals", *flags))
    assert_one_sentence(run, str(one), str(other), "encoder_attn")
    assert not files_under(tmp_path)

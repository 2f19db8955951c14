"""fairseq-hydra-train: a YAML file trains what the same settings as flags of fairseq-train do."""

from __future__ import annotations

import pytest
from running import assert_same_weights, execute, succeed
from tiny_jobs import ADAM, TRANSLATION
from yaml_configs import NESTED, config, hydra_argv


@pytest.fixture(scope="module")
def by_flags(once, data_of):
    """A job's run of 6 updates by fairseq-train."""

    def train(job):
        def make(folder):
            length = ["--max-update", "6", "--no-epoch-checkpoints"]
            return succeed("fairseq-train", *job.train_flags(data_of(job), folder), *ADAM, *length)

        return once(f"by_flags_{job.name}", make)

    return train


def hydra(settings, folder):
    run = execute(hydra_argv(settings, folder), cwd=folder)
    assert run.status == 0, run
    return run


def assert_same(run, folder, by_flags):
    reference, expected = by_flags
    assert run.updates == expected.updates
    assert_same_weights(folder, reference)


def test_flat_keys_train_what_flags_do(job, by_flags, data_of, tmp_path):
    run = hydra(config(job, data_of(job), tmp_path / "save"), tmp_path)
    assert_same(run, tmp_path / "save", by_flags(job))
    assert "2 layers wired by" in run.out


def test_nested_keys_and_wiring_train_what_flags_do(by_flags, data_of, tmp_path):
    """fairseq's nested form of the dimensions; another architecture, which the wiring keys turn into b2t."""
    settings = config(TRANSLATION, data_of(TRANSLATION), tmp_path / "save")
    flat = {k: v for k, v in settings["model"].items() if not k.startswith(("encoder", "decoder"))}
    wiring = {"_name": "transformer_post_ln_18l", "residual": "b2t", "residual_args": {"init_scale": 1.0}}
    settings["model"] = flat | NESTED | wiring
    run = hydra(settings, tmp_path)
    assert_same(run, tmp_path / "save", by_flags(TRANSLATION))
    use = TRANSLATION.use_flags(data_of(TRANSLATION), tmp_path / "save" / "checkpoint_last.pt")
    generated = succeed("fairseq-generate", *use, "--beam", 2, "--gen-subset", "test", "--max-len-b", 10)
    assert len(generated.hypotheses()["H"]) == 8

"""fairseq-train for each task: what it prints, what it saves, and how a killed run goes on."""

from __future__ import annotations

import re

import pytest
from running import assert_same, kill_at, load, succeed, weights
from tiny_jobs import JOBS, SAVE_EVERY, SPEECH, UPDATES, WIKI103

from fairseq_residuals.wirings.core.wiring import Wiring


@pytest.fixture(params=[*JOBS, WIKI103], ids=lambda job: job.name)
def job(request):
    """Each task, and the language model with everything that the WikiText-103 recipes use."""
    return request.param


def test_training_lowers_the_loss_and_saves(job, trained):
    folder, run = trained(job)
    assert sorted(run.updates) == list(range(1, UPDATES + 1))
    assert sum(run.losses[-4:]) < 0.9 * sum(run.losses[:4])
    valid = run.records("valid")
    assert valid[-1]["valid_loss"] < valid[0]["valid_loss"]
    saved = load(folder / "checkpoint_last.pt")
    assert saved["optimizer_history"][-1]["num_updates"] == UPDATES
    assert {path.name for path in folder.glob("checkpoint*.pt")} >= {
        "checkpoint_last.pt",
        "checkpoint_best.pt",
        "checkpoint1.pt",
    }


def test_training_starts_by_naming_what_it_trains(job, trained):
    folder, run = trained(job)
    before, _, _ = run.out.partition("begin training epoch 1")
    variant = re.search(r"transformer_(?:lm_)?(post_ln|pre_ln|b2t)_", job.arch).group(1)
    stacks = ("decoder",) if "_lm_" in job.arch else ("encoder", "decoder")
    for stack in stacks:
        line = re.search(rf"{stack}: (\d+) layers wired by (\w+).*", before)
        assert line, before
        assert (line[1], line[2]) == ("2", variant)
        assert all(equation in line[0] for equation in Wiring.parse(variant).equations)
    saved = weights(load(folder / "checkpoint_last.pt"))
    distinct = {v.untyped_storage().data_ptr(): v.numel() for v in saved.values()}
    assert re.search(rf"parameters: {sum(distinct.values()):,}$", before, re.M), before


@pytest.mark.parametrize("job", [SPEECH, WIKI103], ids=lambda job: job.name, indirect=True)
def test_killed_run_resumes_as_if_uninterrupted(job, data_of, trained, tmp_path):
    folder, whole = trained(job)
    flags = job.long_run(data_of(job), tmp_path)
    kill_at(
        rf"Saved checkpoint .*_{2 * SAVE_EVERY}\.pt|Saved checkpoint .*@ {2 * SAVE_EVERY} updates",
        "fairseq-train",
        *flags,
    )
    assert not (tmp_path / "checkpoint_last.pt").is_symlink()
    resumed = succeed("fairseq-train", *flags)

    start = int(
        re.search(r"Loaded checkpoint .*checkpoint_last\.pt \(epoch \d+ @ (\d+) updates\)", resumed.out).group(1)
    )
    assert 2 * SAVE_EVERY <= start < UPDATES
    assert sorted(resumed.updates) == list(range(start + 1, UPDATES + 1))
    for number, logged in resumed.updates.items():
        assert logged == whole.updates[number], number
    kept = ("valid_loss", "valid_nll_loss", "valid_num_updates")
    later = [{k: r[k] for k in kept if k in r} for r in whole.records("valid") if r["valid_num_updates"] > start]
    assert [{k: r[k] for k in kept if k in r} for r in resumed.records("valid")] == later
    a, b = load(folder / "checkpoint_last.pt"), load(tmp_path / "checkpoint_last.pt")
    assert_same(weights(a), weights(b))
    assert_same(a["last_optimizer_state"], b["last_optimizer_state"])
    assert a["extra_state"]["train_iterator"] == b["extra_state"]["train_iterator"]

"""Checkpoints of fairseq's own models train on in the plugin's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from running import assert_same_weights, succeed
from tiny_jobs import LANGUAGE_MODEL, SAVE_EVERY, SPEECH, TRANSLATION, UPDATES, without_plugin

PAIRS = [
    (replace(TRANSLATION, arch="transformer", name="stock"), "transformer_post_ln_6l"),
    (replace(LANGUAGE_MODEL, arch="transformer_lm_big", name="stock_lm"), "transformer_lm_pre_ln_6l"),
    (replace(SPEECH, arch="s2t_transformer_xs", name="stock_s2t"), "s2t_transformer_pre_ln_xs"),
]
"""A job with a stock architecture, and the plugin's that is the same at these dimensions."""


@pytest.fixture(scope="module")
def stock(once, data_of):
    """The checkpoints and the log of a job trained by fairseq alone."""

    def train(job):
        def make(folder):
            return succeed("fairseq-train", *without_plugin(job.long_run(data_of(job), folder)))

        return once(f"trained_{job.name}", make)

    return train


@pytest.mark.parametrize(("job", "arch"), PAIRS, ids=[arch for _, arch in PAIRS])
def test_stock_checkpoint_trains_on_as_if_in_stock(job, arch, stock, data_of, tmp_path):
    """With its optimizer state, in the middle of an epoch: number by number, and the weights bit for bit."""
    folder, whole = stock(job)
    start = folder / f"checkpoint_1_{SAVE_EVERY}.pt"
    flags = replace(job, arch=arch).long_run(data_of(job), tmp_path)
    resumed = succeed("fairseq-train", *flags, "--restore-file", start)
    assert f"(epoch 1 @ {SAVE_EVERY} updates)" in resumed.out
    assert resumed.updates == {n: whole.updates[n] for n in range(SAVE_EVERY + 1, UPDATES + 1)}
    assert_same_weights(folder, tmp_path)


def test_an_old_checkpoint_goes_to_transformers_and_back(stock, data_of, tmp_path):
    """The commands at the top of docs/CHECKPOINTS.md: equal hypotheses, equal scores."""
    folder, _ = stock(PAIRS[0][0])
    data = data_of(TRANSLATION)
    ours, model, back = (tmp_path / name for name in ("ours.pt", "model_hf", "back.pt"))
    succeed("fairseq-residuals", "import", "--from", "fairseq", folder / "checkpoint_last.pt", ours)
    succeed("fairseq-residuals", "export", "--to", "hf", "--data", data, ours, model)
    succeed("fairseq-residuals", "import", "--from", "hf", model, back)
    scores, hypotheses = [], []
    for checkpoint in (ours, back):
        printed = succeed("fairseq-generate", *TRANSLATION.use_flags(data, checkpoint), "--beam", "4").out
        hypotheses.append([line.split("\t")[2] for line in printed.splitlines() if line.startswith("H-")])
        (tmp_path / "generated.txt").write_text(printed)
        scores.append(succeed("fairseq-residuals", "score", "sacrebleu", tmp_path / "generated.txt").out)
    assert hypotheses[0] == hypotheses[1] and any(hypotheses[0])
    assert scores[0] == scores[1] and "BLEU" in scores[0]

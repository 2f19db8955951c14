"""``fairseq-residuals race``: its games, its training, what it tells."""

from __future__ import annotations

import argparse
import copy
import csv
import math
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from analysed_models import corpus
from fairseq.criterions import build_criterion
from fairseq.optim import build_optimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.commands import race as command
from fairseq_residuals.lab.look.models import build
from fairseq_residuals.lab.look.training_data import SyntheticSequences, count_targets
from fairseq_residuals.lab.recipes import race, race_report
from fairseq_residuals.lab.recipes.losses import unigram_loss
from fairseq_residuals.lab.recipes.race import RaceResult, RaceRun, runs_of, train
from fairseq_residuals.plugin.checkpoints.fairseq_config import synthetic_dictionary
from fairseq_residuals.wirings.core.errors import UserError

TINY = ["--layers", "1", "--dim", "16", "--ffn-dim", "32", "--heads", "2", "--vocabulary", "12", "--sentences", "4"]
TINY += ["--tokens", "6", "--updates", "4", "--warmup", "2"]
PAD, EOS = 1, 2


def arguments(*flags: str) -> Namespace:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    args, args.further = parser.parse_known_args([*TINY, *flags])
    return args


def quiet(update: int, loss: float) -> None:
    pass


@pytest.mark.parametrize("game", ["copy", "reverse", "sort"])
def test_games(game: str) -> None:
    data = SyntheticSequences(arguments("--game", game), synthetic_dictionary(12))
    sample = next(data.train(seed=1))
    inputs, tokens = sample["net_input"], 0
    for source, target, previous, length in zip(
        inputs["src_tokens"], sample["target"], inputs["prev_output_tokens"], inputs["src_lengths"], strict=True
    ):
        words = source[source.ne(PAD)].tolist()
        expected = {"copy": words[:-1], "reverse": words[-2::-1], "sort": sorted(words[:-1])}[game]
        assert target[target.ne(PAD)].tolist() == [*expected, EOS] and words[-1] == EOS
        assert previous[previous.ne(PAD)].tolist() == [EOS, *expected]
        assert len(words) == length and 3 <= len(expected) <= 6
        assert source[-1] == EOS and previous[0] == EOS  # padding is on the left, and on the right
        tokens += int(length)
    assert sample["ntokens"] == tokens
    again = next(SyntheticSequences(arguments("--game", game), synthetic_dictionary(12)).train(seed=1))
    assert torch.equal(again["target"], sample["target"])


def test_unigram_loss() -> None:
    sample = {"target": torch.tensor([[4, 4, 2, PAD], [4, 4, 5, 2]])}
    # frequencies 4, 2 and 1 of 7
    expected = -(4 * math.log2(4 / 7) + 2 * math.log2(2 / 7) + math.log2(1 / 7)) / 7
    assert unigram_loss(count_targets([sample], PAD)) == pytest.approx(expected)


def parts(*flags: str) -> tuple[Any, ...]:
    args = arguments("--variants", "b2t", *flags)
    run = runs_of(args)[0]
    model, _, task = build(run.source, args)
    config = race._config(run, args)
    return (
        model,
        build_criterion(config.criterion, task),
        config,
        SyntheticSequences(args, task.target_dictionary).train(1),
    )


def test_an_update_is_one_of_adam_on_the_loss_per_token() -> None:
    model, criterion, config, samples = parts("--label-smoothing", "0", "--dropout", "0", "--lr", "0.01")
    expected, sample = copy.deepcopy(model), next(samples)
    optimizer = build_optimizer(config.optimizer, list(model.parameters()))
    loss = race._step(model, criterion, optimizer, sample, 0.0)
    by_hand = torch.optim.Adam(expected.parameters(), lr=0.01, betas=(0.9, 0.98))
    logits = expected.train()(**sample["net_input"])[0]
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), ignore_index=PAD)
    mean.backward()
    by_hand.step()
    assert loss == pytest.approx(mean.item() / math.log(2), rel=1e-5)
    # fairseq's Adam does not correct the bias in front of its eps, which shows where gradients are small
    differences = [(p - q).abs() for p, q in zip(model.parameters(), expected.parameters(), strict=True)]
    large = [q.grad.abs() > 1e-3 for q in expected.parameters()]
    assert max(d[k].max().item() for d, k in zip(differences, large, strict=True) if k.any()) < 1e-5
    assert sum(int(k.sum()) for k in large) > 1000


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--warmup", "4"], [0.0, 0.05, 0.2, 0.1]),
        (
            ["--warmup", "0", "--decay-period", "8"],
            [0.2, 0.2 * (8 / 9) ** 0.5, 0.2 * (8 / 12) ** 0.5, 0.2 * (8 / 24) ** 0.5],
        ),
        (["--warmup", "0", "--schedule", "constant"], [0.2, 0.2, 0.2, 0.2]),
        (["--warmup", "0", "--schedule", "linear", "--updates", "16"], [0.2, 0.2 * 15 / 16, 0.15, 0.0]),
    ],
)
def test_schedules(flags: list[str], expected: list[float]) -> None:
    model, _, config, _ = parts("--lr", "0.2", *flags)
    optimizer = build_optimizer(config.optimizer, list(model.parameters()))
    schedule = build_lr_scheduler(config.lr_scheduler, optimizer)
    rates = []
    for done in (0, 1, 4, 16):
        schedule.step_update(done)
        rates.append(optimizer.get_lr())
    assert rates == pytest.approx(expected)


def test_a_race(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--variants", "post_ln", "admin", "--seeds", "2", "--warmup", "0", "2", "--out", str(tmp_path)]
    assert main(["race", *TINY, *flags]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()[2:6]]
    assert [(row[0], row[2]) for row in rows] == [("Post-LN", "0"), ("Admin", "0"), ("Post-LN", "2"), ("Admin", "2")]
    assert "unigram loss is" in out and "[8/8] admin, lr 0.001, warm-up 2, seed 2: update 4/4" in err
    with (tmp_path / "race.csv").open() as file:
        found = list(csv.DictReader(file))
    train = [r for r in found if r["subset"] == "train"]
    assert len(train) == 2 * 2 * 2 * 4 and (tmp_path / "race.png").exists()
    assert all(0 < float(r["loss"]) < 10 for r in found)
    assert {r["seed"] for r in train} == {"1", "2"} and {r["update"] for r in train} == {"1", "2", "3", "4"}


def test_a_seed_gives_the_same_run_again_and_another_does_not() -> None:
    args = arguments("--variants", "b2t", "--seeds", "2", "--dropout", "0.3")
    one, two = runs_of(args)
    first, again, other = (train(run, args, quiet) for run in (one, one, two))
    assert first.train == again.train and first.valid == again.valid and first.train != other.train


def test_a_run_is_labelled_by_the_wiring_of_both_stacks() -> None:
    args = arguments("--variants", "pre_ln", "--decoder-residual", "b2t")
    result = train(runs_of(args)[0], args, quiet)
    assert (result.label, result.wiring) == ("Pre-LN / B2T connection", "b2t")


def test_in_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--variants", "pre_ln", "b2t", "--out", str(tmp_path)]
    assert main(["race", *TINY, *flags, "--jobs", "2"]) == 0
    first = (tmp_path / "race.csv").read_text()
    assert "[2/2] b2t, lr 0.001, warm-up 2, seed 1: update 4/4" in capsys.readouterr().err
    assert main(["race", *TINY, *flags]) == 0
    assert (tmp_path / "race.csv").read_text() == first


def test_a_run_that_diverges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--variants", "pre_ln", "--lr", "1e30", "--warmup", "0", "--out", str(tmp_path)]
    assert main(["race", *TINY, *flags]) == 0
    row = capsys.readouterr().out.splitlines()[2].split()
    assert row[3:8] == ["1", "0", "of", "1", "-"] and row[9] == "2"  # the update after the first one
    with (tmp_path / "race.csv").open() as file:
        last = [r for r in csv.DictReader(file) if r["subset"] == "train"][-1]
    assert (last["update"], last["loss"]) == ("2", "")


def test_what_counts_as_trained() -> None:
    run = RaceRun(runs_of(arguments("--variants", "b2t"))[0].source, 1e-3, 2, 1)
    curve = [(i, 4.0) for i in range(1, 39)]
    trained = RaceResult(run, "B2T connection", "b2t", 9, 4.0, [*curve, (39, 2.1), (40, 1.8)], [(40, 1.7)])
    stuck = RaceResult(run, "B2T connection", "b2t", 9, 4.0, [*curve, (39, 1.0), (40, 3.1)], [(40, 3.0)])
    diverged = RaceResult(run, "B2T connection", "b2t", 9, 4.0, [(1, 0.1)], diverged_at=2)
    # the last twentieth of forty points are two
    assert trained.final == pytest.approx(1.95) and stuck.final == pytest.approx(2.05) and math.isnan(diverged.final)
    assert [r.trained for r in (trained, stuck, diverged)] == [True, False, False]
    row = race_report.table([trained, stuck, diverged])[0]
    assert row[4:8] == ["1 of 3", "2.000 ± 0.071", "2.350 ± 0.919", "2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus with the splits train and valid."""
    corpus(tmp_path, [([5 + i % 7, 6, 7], [7, 6, 5 + i % 7]) for i in range(12)])
    for file in list(tmp_path.glob("valid.*")):
        shutil.copy(file, file.with_name(file.name.replace("valid", "train")))
    return tmp_path


def test_a_race_on_a_corpus(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    flags = ["--data", str(folder), "--source-lang", "s", "--target-lang", "t", "--variants", "b2t", "--out", str(out)]
    assert main(["race", *TINY, *flags]) == 0
    with (out / "race.csv").open() as file:
        unigram = float(next(csv.DictReader(file))["unigram_loss"])
    # in the targets: words 6 and 7 in each sentence and two times more, the ends, and the other words of the last place
    counts = (14, 14, 12, 2, 2, 2, 1, 1)
    expected = -sum(n / 48 * math.log2(n / 48) for n in counts)
    assert unigram == pytest.approx(expected) and f"corpus {folder}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--updates", "0"], "--updates must be at least 1, not 0"),
        (["--warmup", "-1"], "--warmup must be 0 or more"),
        (["--task", "language_modeling"], "encoder-decoder models"),
        (["--precision", "fp16"], "have no meaning here"),
        (["--variants", "b3t"], "unknown wiring 'b3t'"),
        (["--data", "nowhere"], "nowhere"),
        (["--bet", "1"], "--bet is neither a flag of this command nor"),
    ],
)
def test_bad_input(flags: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["race", *TINY, "--variants", "b2t", "--out", str(tmp_path), *flags]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err and not list(tmp_path.iterdir())


def test_nothing_is_left_of_a_failed_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise UserError("no")

    monkeypatch.setattr(command, "train", fail)
    assert main(["race", *TINY, "--variants", "b2t", "--out", str(tmp_path)]) == 2 and not list(tmp_path.iterdir())

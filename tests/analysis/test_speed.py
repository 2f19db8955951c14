"""``fairseq-residuals speed``: what is counted and told; how fast it is, no test can say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from analysed_models import TINY, built, checkpoint, subject

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.look.speed import Timed, generate, prepare
from fairseq_residuals.wirings.core.errors import UserError

SMALL = ["--dim", "16", "--ffn-dim", "32", "--heads", "2", "--sentences", "3", "--tokens", "6", "--vocabulary", "40"]
SMALL += ["--repeats", "2", "--target-tokens", "5"]


@pytest.mark.parametrize("beam", [1, 3])
def test_every_token_is_counted(beam: int) -> None:
    found = subject("b2t", *TINY)
    timed = prepare(found, found.model.decoder.dictionary, "B2T", (3, 3), beam, target_tokens=7)
    tokens, seconds = generate(timed)
    assert tokens == 3 * (7 + 1) and seconds > 0  # three sentences, each with its end
    hypotheses = timed.generator.generate([timed.model], {"net_input": timed.inputs})
    assert {len(beams) for beams in hypotheses} == {beam}
    assert {len(h["tokens"]) for beams in hypotheses for h in beams} == {8}


def test_tokens_beyond_the_positions_are_refused() -> None:
    found = subject("b2t", *TINY)
    with pytest.raises(UserError, match="has 1024 positions"):
        prepare(found, found.model.decoder.dictionary, "B2T", (3, 3), 2, target_tokens=1024)


def test_median_least_and_most() -> None:
    timed = Timed("", "", 1, 1, None, {}, None, tokens=12, seconds=[2.0, 1.0, 6.0])
    assert timed.speeds() == (6.0, 2.0, 12.0)


def test_depths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--encoder-layers",
        "1",
        "3",
        "--decoder-layers",
        "1",
        "2",
        "--fixed",
        "1",
        "--variants",
        "pre_ln",
        "dlcl_pre",
    ]
    assert main(["speed", *SMALL, *flags, "--out", str(tmp_path)]) == 0
    with (tmp_path / "speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    depths = [(row["wiring"], row["encoder_layers"], row["decoder_layers"]) for row in rows]
    # what both lists ask for is timed once
    assert depths == [(v, *pair) for v in ("pre_ln", "dlcl_pre") for pair in (("1", "1"), ("3", "1"), ("1", "2"))]
    for row in rows:
        assert row["tokens"] == str(3 * 6) and row["repeats"] == "2" and row["torch"] == torch.__version__
        assert 0 < float(row["least"]) <= float(row["tokens_per_second"]) <= float(row["most"])
        assert row["device"] and row["fairseq"] == "0.12.2" and row["beam"] == "4"
    assert (tmp_path / "speed.png").exists() and "repeats" in capsys.readouterr().out


def test_a_checkpoint_has_the_depths_that_it_has(tmp_path: Path) -> None:
    model, args = built("b2t", *TINY)
    file = checkpoint(tmp_path / "c.pt", model, args)
    flags = ["--sentences", "2", "--tokens", "4", "--repeats", "1", "--target-tokens", "3", "--beam", "2"]
    assert main(["speed", "--checkpoint", str(file), *flags, "--out", str(tmp_path)]) == 0
    with (tmp_path / "speed.csv").open() as table:
        (row,) = csv.DictReader(table)
    assert (row["encoder_layers"], row["decoder_layers"], row["tokens"]) == ("3", "3", "8")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--repeats", "0"], "--repeats must be at least 1, not 0"),
        (["--encoder-layers", "0"], "must be numbers of at least 1"),
        (["--layers", "3"], "--layers and --training have no meaning here"),
        (["--task", "language_modeling"], "does not translate"),
        (["--variants", "b3t"], "unknown wiring 'b3t'"),
        (["--device", "cuda:77"], "--device cuda:77 is not there"),
    ],
)
def test_bad_input(flags: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed", *SMALL, "--out", str(tmp_path), *flags]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err.splitlines()[-1] and captured.out == "" and not list(tmp_path.iterdir())

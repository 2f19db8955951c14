"""A verdict for a log of each kind, and for the demo's."""

from __future__ import annotations

import csv
import itertools
import math
import time
from pathlib import Path

import pytest
from written_logs import DONE, RESUMED, VANISHING, each, healthy, record

from fairseq_residuals.lab.look.diagnose import (
    DIVERGED,
    HEALTHY,
    LOWER_RATE,
    NOT_LEARNED,
    OTHER_WIRING,
    OVERFITS,
    STOPPED,
    UNKNOWN,
    Unigram,
)
from fairseq_residuals.lab.look.diagnose import diagnose as judge
from fairseq_residuals.lab.look.training_log import Log, read_log

DICTIONARY = "2026 | INFO | fairseq.tasks.translation | [de] dictionary: 10000 types"
"""The unigram loss is estimated to be 9.5 bits per token."""
VALIDATED = "epoch 001 | valid on 'valid' subset | loss {loss} | nll_loss {loss} | num_updates {update}"
NOISE = (0.02, -0.03, 0.01, 0.0, -0.01)


def train(*losses: float, step: int = 10, first: int = 10, **others: float) -> list[str]:
    """Lines of a training whose loss goes straight from each number to the next, in ten steps each."""
    points = [a + (b - a) * i / 10 for a, b in itertools.pairwise(losses) for i in range(10)]
    values = {"lr": 5e-4, "gnorm": 1.3} | others
    return [
        record(first + step * i, loss + NOISE[i % len(NOISE)] * loss / 10, **values) for i, loss in enumerate(points)
    ]


def valid(*losses: float, step: int = 50) -> list[str]:
    return [VALIDATED.format(loss=loss, update=step * i) for i, loss in enumerate(losses, start=1)]


FINE = "nothing in the log is out of order"
DISK = "OSError: [Errno 28] No space left on device"
OVERFLOW = "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0"
CASES: dict[str, tuple[list[str], str, str]] = {
    "learns": ([DICTIONARY, *train(13, 7, 4), *valid(7.5, 4.1), DONE], HEALTHY, "43% of the unigram loss, 9.53"),
    "learns, no dictionary": ([*train(13, 7, 4), *valid(7.5, 4.1), DONE], HEALTHY, "went from 13.03 to 4."),
    "learns, without validation": ([DICTIONARY, *train(13, 7, 4), DONE], HEALTHY, FINE),
    "still learns": ([DICTIONARY, *train(13, 7, 4)], HEALTHY, "training still runs"),
    "overfits, validated on a subset of another name": (
        [*train(13, 4, 2, 1), *(line.replace("'valid'", "'dev'") for line in valid(6, 4, 3.9, 5, 6)), DONE],
        OVERFITS,
        "the validation loss rose from 3.9",
    ),
    "has converged": ([DICTIONARY, *train(13, 3, 2.9, 2.9, 2.9), *valid(3.3, 3.2), DONE], HEALTHY, FINE),
    "converged long ago": ([DICTIONARY, *train(2.9, 2.9, first=90_000), *valid(3.1, 3.1), DONE], HEALTHY, FINE),
    "shrinking": ([*(record(10 * i, 9 / i + 1, each(10.0**-i), gnorm=1) for i in range(1, 15)), DONE], HEALTHY, FINE),
    "a bottom that learns slowly": ([*(record(10 * i, 9 / i, VANISHING) for i in range(1, 15)), DONE], HEALTHY, FINE),
    "slow, yet learns": ([DICTIONARY, *train(13, 9, 8.2), *valid(8.6, 8.1), DONE], HEALTHY, "85% of the unigram loss"),
    "fine-tuned": ([DICTIONARY, RESUMED, *train(3, 2.9), *valid(3.1, 3.0), DONE], HEALTHY, FINE),
    "fp16 that finds its scale": ([DICTIONARY, OVERFLOW, *train(13, 7, 4), DONE], HEALTHY, "looks for its loss scale"),
    "spikes and recovers": ([DICTIONARY, *train(13, 5, 9, 4, 4), DONE], HEALTHY, FINE),
    "smoothed labels": (
        [DICTIONARY, *train(13, 10.4, 9.9, nll_loss=4.0), *valid(4.2, 4.1), DONE],
        HEALTHY,
        "43% of the unigram loss",
    ),
    "constant": ([*train(13, 13), DONE], NOT_LEARNED, "went from 13.03 to 12.99"),
    "constant beside a dictionary": ([DICTIONARY, *train(9.5, 9.5), *valid(9.5, 9.5), DONE], NOT_LEARNED, "100% of"),
    "unigrams alone": ([DICTIONARY, *train(13, 9.6, 9.5, 9.4), *valid(9.4, 9.3), DONE], NOT_LEARNED, "98% of"),
    "unigrams so far": ([DICTIONARY, *train(13, 9.6, 9.5, 9.4)], NOT_LEARNED, "training still runs"),
    "no gradient": ([DICTIONARY, *train(13, 13, gnorm=0.0), DONE], NOT_LEARNED, "no gradient reached any parameter"),
    "no rate": ([DICTIONARY, *train(13, 13, lr=0.0), DONE], NOT_LEARNED, "the learning rate was 0"),
    "no rate after a checkpoint": ([RESUMED, *train(3, 3, lr=0.0), DONE], NOT_LEARNED, "the learning rate was 0"),
    "vanishing gradients": (
        [*(record(10 * i, 9.0, VANISHING) for i in range(1, 15)), DONE],
        NOT_LEARNED,
        "gradients vanished in the decoder",
    ),
    "rises": ([*train(9, 9.8), DONE], DIVERGED, "the loss diverged: it was 9"),
    "explodes": ([DICTIONARY, *train(13, 5, 4, 9), DONE], DIVERGED, "the loss diverged: it was 4"),
    "validation alone rises": (
        [*train(4, 4), *valid(4, 6, 10, step=20), DONE],
        DIVERGED,
        "the validation loss diverged",
    ),
    "validation without training": ([*valid(4, 6, 10), DONE], DIVERGED, "the validation loss diverged: it was 4"),
    "nan": ([*train(13, 8), record(110, math.nan)], DIVERGED, "the loss of train was nan at update 110"),
    "overfits": (
        [DICTIONARY, *train(13, 4, 2, 1), *valid(5, 4, 4.4, 4.8, 5.2, 5.6), DONE],
        OVERFITS,
        "rose from 4 at update 100",
    ),
    "other validation data": (
        [DICTIONARY, *train(13, 4, 2), *valid(9.4, 9.5), DONE],
        OVERFITS,
        "99% of the unigram loss",
    ),
    "a full disk": ([*train(13, 7), DISK], STOPPED, "the disk was full"),
    "a full disk as PyTorch says it": (
        [
            *train(13, 7),
            "RuntimeError: [enforce fail] . PytorchStreamWriter failed writing file data/5: file write failed",
        ],
        STOPPED,
        "the disk was full",
    ),
    "no memory": ([*train(13, 7), "torch.OutOfMemoryError: CUDA out of memory."], STOPPED, "memory was not enough"),
    "another error": ([*train(13, 7), "KeyError: 'x'"], STOPPED, "KeyError: 'x'"),
    "another error without a message": ([*train(13, 7), "AssertionError"], STOPPED, "error: AssertionError"),
    "another end": ([*train(13, 7), "train.sh: line 3: 12345 Killed   fairseq-train data"], STOPPED, "error: train.sh"),
    "another error in C": ([*train(13, 7), "Segmentation fault (core dumped)"], STOPPED, "error: Segmentation"),
    "scores alone": (["H-0\t-1\tkilled", "Generate test with beam=4: BLEU4 = 9"], UNKNOWN, "0 training losses and 0"),
    "two points": ([DICTIONARY, record(10, 13.0), record(20, 12.9), DONE], UNKNOWN, "2 training losses and 0"),
    "warms up": (
        [DICTIONARY, *(record(10 * i, 14 - 0.2 * i, lr=1e-6 * i) for i in range(1, 12))],
        UNKNOWN,
        "the loss still falls: it is too early",
    ),
    "ends while it falls": (
        [DICTIONARY, *(record(10 * i, 14 - 0.2 * i) for i in range(1, 12)), DONE],
        UNKNOWN,
        "train for more updates",
    ),
    "a later part": ([*train(4.1, 4.1, first=90_000), DONE], UNKNOWN, "with --data DIR, it can be told"),
}


@pytest.mark.parametrize("case", CASES)
def test_verdicts(case: str, tmp_path: Path) -> None:
    lines, verdict, reason = CASES[case]
    (tmp_path / "train.log").write_text("\n".join([*lines, ""]))
    found = judge(read_log(tmp_path / "train.log"))
    assert (found.verdict, reason in found.text()) == (verdict, True), found.text()
    assert "left its band" not in found.text()
    assert (OTHER_WIRING in found.advice) == (case == "vanishing gradients")
    assert (LOWER_RATE in found.advice) == (verdict in (DIVERGED, NOT_LEARNED) and not case.startswith("no ")), (
        found.advice
    )
    assert bool(found.advice) == (verdict != HEALTHY and not case.startswith(("another", "a later"))), found.text()


DEMO = Path(__file__).parents[2] / "results/demo"


@pytest.mark.parametrize(("wiring", "verdict"), [("post_ln", NOT_LEARNED), ("pre_ln", HEALTHY), ("b2t", HEALTHY)])
@pytest.mark.parametrize("known", [True, False])
def test_the_demo(wiring: str, verdict: str, known: bool) -> None:
    """Its Post-LN run ended at a BLEU of 0."""
    with (DEMO / "runs.csv").open() as file:
        losses = {row["entry"]: float(row["unigram_loss"]) for row in csv.DictReader(file)}
    unigram = Unigram(losses[wiring], "counted")
    found = judge(read_log(DEMO / f"{wiring}.log"), unigram if known else None)
    assert found.verdict == verdict
    assert ("94% of the unigram loss, 8.59 bits" in found.text()) == (known and wiring == "post_ln")


@pytest.mark.parametrize(
    "unit",
    [
        *("epoch 1: ", "epoch 001: a=1 ", "a", "a.", "a ", "a=", "=", '{"', "} ", "0", "0.", "lr=[", "lr=1-", "lr=1"),
        *("encoder: 1 layers wired by x (", "NaN detected in output of , ", "Generate x with beam=1: ", "a:", "error"),
        *("00:00:00][", "00:00:00,0", "dictionary size (", "dictionary: 1", "target_lang='a", " ", "\t| "),
        *("num. shared model params: ,", "num. shared model params: 1"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "epoch 001: 1 / 2 num_updates=", "seed wired by ", "Error: "])
def test_a_long_line_takes_no_longer_than_its_length(prefix: str, unit: str, tmp_path: Path) -> None:
    """At most some tenths of a second for two million characters; a pattern that takes the square took minutes."""
    (tmp_path / "train.log").write_text(f"{prefix}{unit * (2_000_000 // len(unit))}\n{healthy()[0]}\n")
    began = time.process_time()
    log = Log(tmp_path / "train.log").read_on()
    judge(log)
    assert time.process_time() - began < 5

"""``fairseq-residuals diagnose``: logs broken by hand, and what is said of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from analysed_models import built, subject
from fairseq.data.indexed_dataset import make_builder
from fairseq.nan_detector import NanDetector
from refusals import refusal
from written_logs import ANEW, DONE, LAYERS, RESUMED, VANISHING, each, healthy, record

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.look.diagnose import NOT_LEARNED, Unigram, ends_out_of_band, vanishing_sentence
from fairseq_residuals.wirings.core.errors import UserError


@pytest.fixture
def diagnose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command on lines, or with flags on a file, and returns what it prints."""

    def run(*lines: str, file: Path | None = None) -> str:
        flags = lines if file else ()
        if file is None:
            file = tmp_path / "train.log"
            file.write_text("\n".join([*lines, ""]))
        assert main(["diagnose", str(file), *flags]) == 0
        return capsys.readouterr().out

    return run


def test_the_unigram_loss_of_a_corpus(diagnose: Callable[..., str], tmp_path: Path) -> None:
    """Four types as frequent as each other have 2 bits; the log says which side of a pair the target is."""
    for language, ids in (("de", [4, 5, 6, 7]), ("en", [4, 4, 5, 5]), ("xx", [4])):
        builder = make_builder(str(tmp_path / f"train.de-en.{language}.bin"), impl="mmap", vocab_size=8)
        builder.add_item(torch.tensor(ids))
        builder.finalize(str(tmp_path / f"train.de-en.{language}.idx"))
    assert Unigram.counted(tmp_path, "de").bits == 2.0
    assert Unigram.counted(tmp_path, "").bits == Unigram.counted(tmp_path, "en").bits == 1.0
    with pytest.raises(UserError, match="less than two types"):
        Unigram.counted(tmp_path, "xx")
    lines = [record(10 * i, 2.1 - i / 200) for i in range(1, 20)]
    (tmp_path / "run").write_text("\n".join(["{'seed': 1, 'target_lang': 'de'}", *lines, DONE, ""]))
    text = diagnose("--data", str(tmp_path), file=tmp_path / "run")
    assert NOT_LEARNED in text and "of the unigram loss, 2.00 bits per token (counted in" in text
    with pytest.raises(UserError, match="no binarized targets of train"):
        Unigram.counted(tmp_path / "run", "")


def test_a_healthy_run(diagnose: Callable[..., str]) -> None:
    example = "[2026-11-26 11:06:32,568][fairseq.tasks.translation][INFO] - example hypothesis: error: he was killed"
    assert "Verdict: healthy" in diagnose(*healthy(), example, "/srv/skilled/model.py:3: UserWarning: it is slow")
    text = diagnose(*healthy(), DONE)
    assert "Verdict: healthy" in text and "training came to its end at update 120" in text
    assert "Where" not in text and "What to try" not in text


def test_epochs_shorter_than_the_log_interval(diagnose: Callable[..., str]) -> None:
    """Norms are then logged at the end of each."""
    lines = [record(10 * i, 8, VANISHING) for i in range(1, 12)]
    at_ends = [f"epoch 001 | {line[18:].replace(', ', ' | ').replace('=', ' ')}" for line in lines]
    for logged in (lines, at_ends):
        assert "vanish" in diagnose(*logged, DONE)


def test_the_layer_that_left_its_band_first(diagnose: Callable[..., str]) -> None:
    lines = healthy(10)
    usual = each(0.5)
    lines.append(record(110, 0.9, usual | {3: 80.0}))
    lines.append(record(120, 0.95, usual | {2: 60.0, 3: 500.0, 4: 70.0}))
    lines.append(record(130, math.nan, dict.fromkeys(usual, math.nan), gnorm=math.nan))
    text = diagnose(*lines)
    assert "the loss of train was nan at update 130; the training loss was 0.95 at update 120 before" in text
    assert "the gradient norm of decoder layer 3 left its band first, at update 110: it exploded to" in text
    assert "5 further layers followed" in text


def test_a_spike_that_passes_is_not_blamed(diagnose: Callable[..., str]) -> None:
    lines = healthy()
    lines[5] = record(60, 1.4, {n: (30.0 if n == 2 else 0.6) for n in range(1, LAYERS + 1)})
    assert "left its band" not in diagnose(*lines, DONE)


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([1.0, 1.1, 0.9, 9.0], None),
        ([1.0, 1.1, 0.9, 10.1], (3, "exploded to 10 times the median of those before")),
        ([1.0, 1.1, 0.9, 0.05, 0.04], (3, "collapsed to 20 times less than the median of those before")),
        ([1.0, 1.0, 1.0, 50.0, 1.0], None),
        ([1.0, 1.0, math.inf], (2, "was no longer a number")),
        ([1.0, 50.0], None),  # too early to know a band
    ],
)
def test_bands(curve: list[float], expected: tuple[int, str] | None) -> None:
    assert ends_out_of_band(dict(enumerate(curve))) == expected


def test_layer_dropout_is_no_collapse(diagnose: Callable[..., str]) -> None:
    kept = [record(10 * i, 6.0, each(1.0) | dict.fromkeys((1, i % 5 + 1), 0.0)) for i in range(1, 6)]
    kept += [record(10 * i, 6.0, each(1.0)) for i in range(6, 16)]
    text = diagnose(*kept, record(160, 6.0, each(1.0) | {1: 0.0}))
    assert "Verdict: did not learn" in text and "Where" not in text


def test_vanishing_gradients(diagnose: Callable[..., str]) -> None:
    lines = [record(10 * i, 6.0 - 0.0001 * i, VANISHING) for i in range(1, 17)]
    text = diagnose(*lines, DONE)
    assert "at update 10 gradients vanished in the decoder: from 1 in layer 6 to 1e-05 in layer 1" in text
    assert "by a factor of 0.10 per layer" in text
    assert "Verdict: did not learn" in text and "--residual b2t, pre_ln or resi_dual" in text
    assert vanishing_sentence("encoder", [0.011, 1.0]) == "" and vanishing_sentence("encoder", [math.nan, 1.0]) == ""


def test_fp16_that_gave_up(diagnose: Callable[..., str]) -> None:
    overflow = "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: {}"
    lines = [record(10, 8.0, loss_scale=128), record(20, 7.5, loss_scale=128)]
    lines += [overflow.format(scale) for scale in (64.0, 32.0, 16.0)]
    lines.append("FloatingPointError: Minimum loss scale reached (16.0). Your loss is probably exploding.")
    text = diagnose(*lines)
    assert "3 gradients overflowed, the first after update 20, the last after 20" in text
    assert "after update 20 training ended: fp16 gave up" in text
    assert "--bf16" in text and "--log-residual-stats 10" in text


def test_overflows_at_the_beginning_are_harmless(diagnose: Callable[..., str]) -> None:
    lines = healthy()
    lines.insert(1, "gradient overflow detected, ignoring gradient, setting loss scale to: 64.0")
    text = diagnose(*lines, DONE)
    assert "1 gradients overflowed, the first after update 10" in text and "while it looks for its loss scale" in text
    assert "--bf16" not in text


def test_the_module_that_made_nan(diagnose: Callable[..., str]) -> None:
    nan = "NaN detected in output of decoder.layers.{}, shape: torch.Size([7, 3, 16]), forward input max: {}"
    lines = [*healthy(5), nan.format("2.fc2", 9.5), nan.format("3.fc1", "nan")]
    text = diagnose(*lines, "fairseq-train: error: training diverged: gradients are Nan/Inf; `fairseq-residuals ...")
    assert "NaN came first out of decoder.layers.2.fc2, in the forward pass" in text
    assert "after update 50 training ended: a gradient was infinite or no number, and fairseq gave up" in text


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_what_fairseq_says_of_nan_is_understood(
    way: str, diagnose: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    model, _ = built("b2t")
    batch = subject("b2t").batch
    layer = model.decoder.layers[1]
    with NanDetector(model, forward=way == "forward", backward=way == "backward"):
        if way == "forward":
            torch.nn.init.constant_(layer.fc2.weight[0], math.nan)
        else:
            # finite on the way up, and not on the way down
            layer.activation_fn = lambda x: (x - x).sqrt()
        batch.loss(model).backward()
    where = "fc2" if way == "forward" else "fc1"
    text = diagnose(*healthy(), *caplog.messages)
    assert f"NaN came first out of decoder.layers.1.{where}, in the {way} pass" in text


@pytest.mark.parametrize(
    "error",
    [
        "OSError: [Errno 28] No space left on device",
        "FloatingPointError: Minimum loss scale reached (0.0001).",
        "RuntimeError: something else",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_a_run_that_was_stopped_and_went_on(error: str, diagnose: Callable[..., str]) -> None:
    """It is judged by its end: what stopped it was mended."""
    lines = healthy()
    for ending in ([], [DONE]):
        text = diagnose(*lines[:6], error, RESUMED, *lines[6:], *ending)
        assert "Verdict: healthy" in text and "fairseq left out" not in text
    assert "after update 60 training ended" in diagnose(*lines[:6], error)
    assert "after update 60 training ended" in diagnose(*lines[:3], error, RESUMED, *lines[3:6], error)


def test_a_batch_that_was_left_out_ended_nothing(diagnose: Callable[..., str]) -> None:
    lines = [record(10, 8.0), "| WARNING: attempting to recover from OOM: out of memory", record(20, 7.0), DONE]
    text = diagnose(*lines)
    assert "for a batch, which fairseq left out" in text and "--update-freq" in text and "Verdict: stopped" not in text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        # a text about training: what it says of errors is of none of its own
        (b"Where it runs out of memory, the job is killed: CUDA out of memory.\n", "has no record of fairseq-train"),
        ("\n".join([*healthy(), DONE, *healthy(5)]).encode(), "has several runs"),
        ("\n".join([*healthy(), DONE, ANEW, *healthy(20)]).encode(), "has several runs"),
    ],
)
def test_bad_input(content: bytes | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run"
    if content is not None:
        file.write_bytes(content)
    assert sentence in refusal(capsys, "diagnose", file, status=2)


def test_an_error_before_the_first_record(diagnose: Callable[..., str]) -> None:
    lines = ["Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA out of memory."]
    assert "after update 0 training ended: the memory was not enough" in diagnose(*lines)


def test_a_run_that_began_anew_is_not_mixed_with_the_one_before(diagnose: Callable[..., str]) -> None:
    """The first had come further, to a lower loss: taken together they would have diverged."""
    first = [record(10 * i, 4 / i) for i in range(1, 13)]
    second = [record(10 * i, 9 / i) for i in range(1, 4)]
    text = diagnose(*first, ANEW, *second)
    assert "the log ends after update 30 without an error" in text and "diverged" not in text
    assert "began anew once; this is of the last" in text


def test_a_run_that_goes_on_after_its_end(diagnose: Callable[..., str]) -> None:
    assert "its end at update 120" in diagnose(*healthy(), DONE, RESUMED, *healthy()[2:], DONE)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e308", "-1e308", "1e400"])
@pytest.mark.parametrize("where", ["loss", "norms"])
def test_numbers_that_no_run_should_log(value: str, where: str, diagnose: Callable[..., str]) -> None:
    """One sentence or more, whatever the log says."""
    norms: dict[int, float] = dict.fromkeys(range(1, 4), float(value) if where == "norms" else 1.0)
    loss = float(value) if where == "loss" else 1.0
    lines = [record(10 * i, loss, norms) for i in range(1, 10)]
    assert "What happened" in diagnose(*lines, DONE)

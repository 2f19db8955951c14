"""Reading text, what fairseq-generate prints, and the logs of fairseq-eval-lm and fairseq-validate."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
import torch

from fairseq_residuals.lab.scoring.perplexity import joeynmt_perplexity, perplexity_of_eval_lm, perplexity_of_validate
from fairseq_residuals.plugin.scoring.text import is_generation, parse_generation, read_lines
from fairseq_residuals.wirings.core.errors import UserError

SKIPPED = "2026 | WARNING | x | {} samples have invalid sizes and will be skipped, max_positions=512, first few [1]"


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\u2028b\x85c\x0cd\r\n\nlast".encode())
    assert read_lines(path) == ["a\u2028b\x85c\x0cd", "", "last"]
    path.write_bytes(b"a\n\n")
    assert read_lines(path) == ["a", ""]
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    assert read_lines(path) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "words"), [(None, "there is no file"), (b"", "is empty"), (b"a\n\xff\n", "is not UTF-8 text")]
)
def test_unreadable_text(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_lines(path)


def generated(*numbers: int, detokenized: bool = True, targets: bool = True) -> list[str]:
    """As fairseq-generate prints them, log lines between."""
    lines = ["2026-01-01 00:00:00 | INFO | fairseq_cli.generate | loading model(s) from T-0"]
    for n in numbers:
        lines += [f"S-{n}\tsource {n}", *([f"T-{n}\ttarget {n}"] if targets else [])]
        lines += [f"H-{n}\t-0.5\thyp@@ o {n}", *([f"D-{n}\t-0.5\thypo {n}"] if detokenized else [])]
        lines += [f"P-{n}\t-0.1 -0.2"]
    end = f"2026-01-01 00:00:00 | INFO | fairseq_cli.generate | Translated {len(numbers)} sentences (9 tokens) in 1.0s"
    return [*lines, end, "Generate test with beam=5: BLEU4 = 0.00"]


def test_sentences_are_sorted_by_number() -> None:
    """By their value: 10 comes after 2."""
    found = parse_generation(generated(10, 2, 0, 1, *range(3, 10)))
    assert found.hypotheses == [f"hyp@@ o {n}" for n in range(11)]
    assert found.detokenized == [f"hypo {n}" for n in range(11)]
    assert found.targets == [f"target {n}" for n in range(11)]


def test_without_detokenized_lines_and_targets() -> None:
    found = parse_generation(generated(1, 0, detokenized=False, targets=False))
    assert found.detokenized == found.hypotheses == ["hyp@@ o 0", "hyp@@ o 1"]
    assert found.targets is None


def test_the_best_of_several_hypotheses_and_an_empty_one() -> None:
    lines = ["S-0\tx", "H-0\t-0.1\tbest", "D-0\t-0.1\tBest", "H-0\t-0.2\tsecond", "D-0\t-0.2\tSecond"]
    lines += ["S-1\ty", "H-1\t-0.3\t", "D-1\t-0.3\t"]
    found = parse_generation(lines)
    assert found.hypotheses == ["best", ""] and found.detokenized == ["Best", ""]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "has no hypotheses"),
        (generated(0, 1, 3), "lacks the hypotheses of 1 sentences, the first being number 2"),
        (generated(0, 1) + generated(0, 1), "has sentence 0 twice"),
        (generated(0) + generated(0), "has sentence 0 twice"),
        (generated(0, 1)[:-2], "is not whole: fairseq-generate was stopped"),
        (generated(0, 1)[:-4], "has only one of the lines D-1 and H-1"),
        (["H-0\t-1\ta", "T-1\tb"], "has only one of the lines T-0 and H-0"),
        ([SKIPPED.format(1), *generated(0, 1)], "lacks the hypotheses of 1 sentences, which fairseq-generate left out"),
        (generated(0, 999_999_999), "lacks the hypotheses of 999999998 sentences, the first being number 1"),
        (["H-" + "1" * 5000 + "\t-1\ta"], "has no hypotheses"),
        ([*generated(0, 1), "Translated 3 sentences (9 tokens) in 1.0s"], "says that 3 were translated"),
    ],
)
def test_output_that_is_not_whole(lines: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_generation(lines)


def test_a_long_line_takes_no_longer_than_its_length() -> None:
    begin = time.process_time()
    with pytest.raises(UserError, match="has no hypotheses"):
        parse_generation(["1," * 200_000])
    with pytest.raises(UserError, match="has 0 times a"):
        perplexity_of_validate("valid on 'valid' subset | " * 20_000)
    assert time.process_time() - begin < 2


def test_plain_text_is_no_generation() -> None:
    assert is_generation(generated(0))
    quiet = "2026-11-28 12:00:00 | INFO | fairseq_cli.generate | Translated 2 sentences (9 tokens) in 0.1s"
    assert is_generation([quiet])  # which has no hypotheses, and says so
    assert not is_generation(["H-0 is a name", "H-0\tis", "H-1\tis\tnone"])


SETTINGS = (
    "2026 | INFO | fairseq_cli.eval_lm | {'common_eval': {'post_process': %s}, 'eval_lm': {'context_window': 400, "
    "'softmax_batch': 9}, 'task': {'tokens_per_sample': 512, 'sample_break_mode': 'complete'}}"
)


def eval_lm_log(loss: float = 3.0, post_process: str = "None") -> str:
    lines = [
        SETTINGS % post_process,
        "2026 | INFO | x | Evaluated 1,000 tokens in 1.0s (1 tokens/s)",
    ]
    return "\n".join([*lines, f"2026 | INFO | x | Loss (base 2): {loss:.4f}, Perplexity: {2**loss:.2f}"])


def test_perplexity_of_words() -> None:
    found = perplexity_of_eval_lm(eval_lm_log(loss=4.25))
    assert found.value == pytest.approx(2**4.25)
    assert found.metric == "ppl_context_400"
    for part in ("context:400", "block:512", "break:complete", "tokens:1000", "eos:counted"):
        assert part in found.signature


def test_perplexity_of_subwords_is_turned_into_one_of_words() -> None:
    """3 bits for each of 1000 subwords are 5 for each of 600 words."""
    found = perplexity_of_eval_lm(eval_lm_log(loss=3.0), words=600)
    assert found.value == pytest.approx(32)
    assert "600 in 1000" in found.signature


@pytest.mark.parametrize(
    ("log", "words", "sentence"),
    [
        (eval_lm_log() + "\n" + eval_lm_log(), None, "the log has 2 times"),
        (eval_lm_log().rpartition("\n")[0], None, "the log has 0 times"),
        (eval_lm_log().partition("\n")[2], None, "does not say context_window"),
        (eval_lm_log().replace("Perplexity: 8.00", "Perplexity: 9.00"), None, "contradicts itself"),
        (eval_lm_log(post_process="'@@ '"), 600, "per word already"),
        (f"{SKIPPED.format('3')}\n{eval_lm_log()}", None, "left out 3 samples that are too long"),
        (f"{SKIPPED.format('1,000')}\n{eval_lm_log()}", 600, "left out 1,000 samples"),
        (f"skipping tokens with inf scores: a\n{eval_lm_log()}", None, "tokens of probability 0"),
        (eval_lm_log(math.nan), None, "the loss of the run is nan"),
        (eval_lm_log(math.inf), None, "the loss of the run is inf"),
        (eval_lm_log().replace(": 3.0000", ": 3000.0"), None, r"the loss of the run is 3000\.0"),
        (eval_lm_log().replace(": 3.0000", ": three"), None, "the log has 0 times"),
        (eval_lm_log().replace("1,000 tokens", ", tokens"), None, "the log has 0 times"),
        (eval_lm_log().replace("1,000 tokens", f"{'1' * 5000} tokens"), None, "the log has 0 times"),
    ],
)
def test_logs_that_have_no_perplexity(log: str, words: int | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        perplexity_of_eval_lm(log, words=words)


def test_perplexity_of_validation() -> None:
    line = "2026 | INFO | valid | valid on '{}' subset | loss 3.9 | nll_loss {} | ppl {} | wps 0"
    log = "\n".join([line.format("valid", 2.5, 5.66), line.format("valid1", 3, 8)])
    found = perplexity_of_validate(log, "valid1")
    assert (found.value, found.metric) == (8, "ppl")
    assert perplexity_of_validate(log).value == pytest.approx(2**2.5)
    with pytest.raises(UserError, match="on test"):
        perplexity_of_validate(log, "test")
    # fairseq's cross_entropy logs one loss
    plain = line.replace("loss 3.9 | nll_loss {}", "loss {}")
    assert perplexity_of_validate(plain.format("valid", 3, 8)).value == 8
    with pytest.raises(UserError, match=r"loss of 3\.0 bits is no perplexity of 7\.0"):
        perplexity_of_validate(plain.format("valid", 3, 7))
    with pytest.raises(UserError, match="fairseq-validate left out 2 samples"):
        perplexity_of_validate(f"{SKIPPED.format(2)}\n{plain.format('valid', 3, 8)}")
    with pytest.raises(UserError, match="the loss of the run is nan"):
        perplexity_of_validate(plain.format("valid", "nan", "nan"))


def test_perplexity_of_joeynmt() -> None:
    """exp of PyTorch's divergence from smoothed targets, computed here from the cross entropy with the same targets."""
    vocabulary, smoothing, pad = 11, 0.3, 1
    log_probabilities = torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(1)).log_softmax(-1).double()
    targets = torch.full((4, vocabulary), smoothing / (vocabulary - 2), dtype=torch.double)
    targets[torch.arange(4), torch.tensor([5, 7, 2, 9])] = 1 - smoothing
    targets[:, pad] = 0
    divergence = torch.nn.KLDivLoss(reduction="sum")(log_probabilities, targets) / 4
    cross_entropy = -(targets * log_probabilities).sum() / 4
    found = joeynmt_perplexity(cross_entropy.item() / math.log(2), vocabulary, smoothing)
    assert found == pytest.approx(divergence.exp().item())

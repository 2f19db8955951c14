"""The metrics, against values counted by hand and against the reference tools themselves."""

from __future__ import annotations

import random
import sys
from math import exp

import jiwer
import pytest
import sacrebleu
from fairseq.data import Dictionary
from fairseq.scoring import build_scorer

import fairseq_residuals  # noqa: F401  registers the scorers
from fairseq_residuals.lab.scoring.retokenize import retokenize
from fairseq_residuals.plugin.scoring.metrics import METRICS, make_metric, score, split_compounds
from fairseq_residuals.wirings.core.errors import UserError

WORDS = ["the", "a", "cat", "dog", "sat", "lay", "on", "under", "mat", "well-known", "house", "."]


def corpus(sentences: int = 60, seed: int = 3) -> tuple[list[str], list[str]]:
    """Hypotheses and references that share most of their words."""
    draw = random.Random(seed)
    references = [draw.choices(WORDS, k=draw.randint(4, 14)) for _ in range(sentences)]
    hypotheses = [[word if draw.random() < 0.8 else draw.choice(WORDS) for word in line] for line in references]
    return [" ".join(line) for line in hypotheses], [" ".join(line) for line in references]


def value(metric: str, hypotheses: list[str], *references: list[str]) -> float:
    return score(metric, hypotheses, *references).value


def test_sacrebleu_is_sacrebleu() -> None:
    hypotheses, references = corpus()
    metric = sacrebleu.BLEU()
    assert value("sacrebleu", hypotheses, references) == pytest.approx(
        metric.corpus_score(hypotheses, [references]).score, abs=1e-9
    )
    assert score("sacrebleu", hypotheses, references).signature == f"BLEU|{metric.get_signature()}"
    other = [line.upper() for line in references]
    assert value("sacrebleu", hypotheses, references, other) == pytest.approx(
        sacrebleu.corpus_bleu(hypotheses, [references, other]).score, abs=1e-9
    )


def test_tokenized_bleu_counted_by_hand() -> None:
    """5 of 6 words (the reference has one "the"), 3 of 5 pairs, 2 of 4, 1 of 3; no brevity penalty."""
    by_hand = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert value("tokenized_bleu", ["the cat sat on the mat"], ["the cat sat on a mat"]) == pytest.approx(by_hand)


def test_bleu_is_of_the_corpus() -> None:
    """Counts and lengths are summed, not scores: 7 words of 9 for 5/5 of order 1, and 4/4, 3/3, 2/2 of the others."""
    hypotheses, references = ["a b c d e"], ["a b c d e f g"]
    assert value("tokenized_bleu", hypotheses, references) == pytest.approx(100 * exp(1 - 7 / 5))
    # a sentence that alone scores 0 takes nothing from the n-grams of higher orders: it has none
    both = value("tokenized_bleu", [*hypotheses, "x y"], [*references, "f"])
    assert both == pytest.approx(100 * exp(1 - 8 / 7) * (5 / 7 * 4 / 5) ** 0.25)


@pytest.mark.parametrize(
    ("hypothesis", "reference"), [("a b c x", "a b c d"), ("a b c", "a b c"), ("", "a b c d"), ("x", "a")]
)
def test_tokenized_bleu_is_0_if_an_order_has_no_match(hypothesis: str, reference: str) -> None:
    assert value("tokenized_bleu", [hypothesis], [reference]) == 0


def test_tokenized_bleu_takes_tokens_as_they_are() -> None:
    assert value("tokenized_bleu", ["a b c d ."], ["a b c d."]) < 100
    assert value("sacrebleu", ["a b c d ."], ["a b c d."]) == pytest.approx(100)
    # multi-bleu.perl reads bytes: a no-break space is part of a word, of which there are four here
    assert value("tokenized_bleu", ["a b c 1\u00a0000"], ["a b c 1\u00a0000"]) == pytest.approx(100)
    assert value("tokenized_bleu", ["a b 1\u00a0000"], ["a b 1\u00a0000"]) == 0
    assert value("tokenized_bleu", ["a  b\tc d "], ["a b c d"]) == pytest.approx(100)


def test_lower_case_is_that_of_bytes() -> None:
    assert value("tokenized_bleu", ["A b c d e"], ["a b c d e"]) < 100
    assert value("tokenized_bleu_lc", ["A b c d \u00dc"], ["a b c d \u00fc"]) < 90
    assert value("tokenized_bleu_lc", ["A b c d \u00dc"], ["a B c d \u00dc"]) == pytest.approx(100)


def test_several_references() -> None:
    """A word counts as often as in the reference that has it most often: "a" twice. Matched are 5 of 5 words, 4 of 4
    pairs, 2 of 3 and 1 of 2. Of the two lengths that are equally near to 5, the shorter counts: no penalty."""
    scores = score("tokenized_bleu", ["a a b c d"], ["a b c d"], ["a a x x x x"])
    assert scores.value == pytest.approx(100 * (2 / 3 * 1 / 2) ** 0.25)
    assert "nrefs:2" in scores.signature


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("2-3-4-5", "2 ##AT##-##AT## 3-4 ##AT##-##AT## 5"),
        ("well-known - fact -x y- a--b", "well ##AT##-##AT## known - fact -x y- a ##AT##-##AT## -b"),
        ("ü-b-ü", "ü ##AT##-##AT## b-ü"),
        ("a-ü-b", "a ##AT##-##AT## ü ##AT##-##AT## b"),
        ("1-€-2", "1 ##AT##-##AT## € ##AT##-##AT## 2"),
        ("a\u00a0-b", "a\u00a0 ##AT##-##AT## b"),
    ],
)
def test_compounds_are_split_as_by_perl(line: str, expected: str) -> None:
    r"""Expected is what perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' prints."""
    assert split_compounds(line) == expected


def test_compound_bleu_splits_both_sides() -> None:
    """Three words become five and seven: of hypothesis and reference, "well ##AT##-##AT## known" is now shared."""
    hypotheses, references = ["a well-known man"], ["a well-known dog"]
    assert value("tokenized_bleu", hypotheses, references) == 0
    assert value("compound_bleu", hypotheses, references) == pytest.approx(
        100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    )


def test_empty_reference_is_refused_by_bleu() -> None:
    with pytest.raises(UserError, match="reference 2 is empty"):
        score("compound_bleu", ["a", "b"], ["a", " "])
    # but no training ends at it
    assert make_metric("compound_bleu").statistics("a b", "")[:2] == [2, 0]


def test_rouge_counted_by_hand() -> None:
    """All 3 words; of the pairs "the police", "police kill" and "police kill", "kill the" one; in order 2 of 3."""
    scores = score("rouge", ["police kill the"], ["the police kill"]).values
    assert scores == pytest.approx({"rouge1": 100, "rouge2": 50, "rougeL": 200 / 3, "rouge": (100 + 50 + 200 / 3) / 3})


def test_rouge_is_the_mean_of_f1_over_pairs() -> None:
    """F1 of 1 of 1 and 1 of 3 words is 1/2; the other pair has none, nor has one without a reference."""
    hypotheses, references = ["cat", "dog", "cat"], ["cat on mat", "cat", ""]
    assert score("rouge", hypotheses, references).values["rouge1"] == pytest.approx(100 * (1 / 2 + 0 + 0) / 3)


def test_rouge_stems_words_of_more_than_three_letters() -> None:
    assert value("rouge", ["talks"], ["talking"]) == pytest.approx(100 / 3 * 2)  # one word has no pairs
    assert value("rouge_unstemmed", ["talks"], ["talking"]) == 0
    assert score("rouge", ["cats"], ["cat"]).values["rouge1"] == pytest.approx(100)
    assert score("rouge", ["was"], ["wa"]).values["rouge1"] == 0


def test_rouge_ignores_case_and_everything_but_letters_and_digits() -> None:
    assert score("rouge_unstemmed", ["Rates # fell , 3.5 %"], ["rates fell 3 5"]).values["rouge1"] == pytest.approx(100)
    assert score("rouge_unstemmed", ["данные"], ["данные"]).values["rouge1"] == 0


def test_rouge_refuses_lines_whose_comparison_takes_gigabytes() -> None:
    with pytest.raises(UserError, match="one line has 30,000 words, its reference 30,000: rouge compares sentences"):
        value("rouge", ["a " * 30_000], ["a " * 30_000])


def test_wer_counted_by_hand() -> None:
    """A substitution and a deletion in 4 words, nothing in 1: 2 of 5, and not the mean of 50% and 0%."""
    assert value("wer", ["a x c", "e"], ["a b c d", "e"]) == pytest.approx(100 * 2 / 5)
    assert value("wer", ["A b"], ["a b"]) == pytest.approx(50)
    assert value("wer", ["a b c d e"], ["a"]) == pytest.approx(400)
    assert value("wer", ["a\t b\u00a0c "], ["a b  c"]) == 0
    # where the reference is empty, words are insertions
    assert value("wer", ["x y", "a b"], ["", "a b"]) == pytest.approx(100 * 2 / 2)
    with pytest.raises(UserError, match="no words"):
        score("wer", ["x", ""], ["", " "])


def test_wer_is_jiwer_s_and_fairseq_s() -> None:
    hypotheses, references = corpus()
    hypotheses[0] = ""
    theirs = build_scorer("wer", Dictionary())
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        theirs.add_string(reference, hypothesis)
    ours = value("wer", hypotheses, references)
    assert ours == pytest.approx(theirs.score(), abs=1e-9)
    assert ours == pytest.approx(100 * jiwer.wer(references, hypotheses), abs=1e-9)


@pytest.mark.parametrize("name", ["tokenized_bleu", "tokenized_bleu_lc", "compound_bleu", "rouge", "rouge_unstemmed"])
def test_scorers_of_fairseq_score_as_files_do(name: str) -> None:
    hypotheses, references = corpus()
    scorer = build_scorer(name, Dictionary())
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        scorer.add_string(reference, hypothesis)
    scores = score(name, hypotheses, references)
    assert scorer.score() == pytest.approx(scores.value, abs=1e-9)
    assert scores.signature in scorer.result_string()
    assert all(f"{key} = {number:.2f}" in scorer.result_string() for key, number in scores.values.items())


def test_an_unknown_word_of_the_reference_is_never_matched() -> None:
    """fairseq hands the scorer <<unk>> for one in the reference, <unk> for one in the hypothesis."""
    scorer = build_scorer("rouge_unstemmed", Dictionary())
    scorer.add_string("police <<unk>>", "police <unk>")
    assert scorer.metric.values(scorer.totals)["rouge1"] == pytest.approx(50)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("bleu", ["a"], ["a"]), f"there is no metric 'bleu'; the metrics are {', '.join(METRICS)}"),
        (("wer", ["a", "b"], ["a"]), "there are 2 hypotheses but 1 references; each needs one"),
        (("wer", [], []), "there is nothing to score: one hypothesis and one reference per sentence are needed"),
        (("wer", ["a"]), "there is nothing to score: one hypothesis and one reference per sentence are needed"),
        (("rouge", ["a"], ["a"], ["a"]), "rouge takes one reference per sentence, not 2"),
    ],
)
def test_mistakes(arguments: tuple, sentence: str) -> None:
    with pytest.raises(UserError) as mistake:
        score(*arguments)
    assert str(mistake.value) == sentence


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(UserError, match="needs the package jiwer: pip install jiwer"):
        score("wer", ["a"], ["a"])


def test_retokenize_as_dlcl_does() -> None:
    """Escapes are undone and done again; punctuation of other scripts becomes ASCII, and then tokens of its own."""
    assert retokenize(["Er sagte : &quot; Ja &quot; ."]) == ["Er sagte : &quot; Ja &quot; ."]
    assert retokenize(["drei \uff0cvier \uff08 fünf \uff09"]) == ["drei , vier ( fünf )"]
    with pytest.raises(UserError, match=r"no language to tokenize is called 'deutsch'; valid: .* de, "):
        retokenize(["z.B. so"], "deutsch")

"""Cleaning descriptions of packages, aligning them with their translations, and holding some of them out."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from fairseq_residuals.lab.data.corpora.debian_descriptions import (
    Example,
    Unit,
    clean,
    cleaned,
    is_copy,
    is_language,
    is_placeholder,
    pairs,
    paragraphs,
    sentences,
    split,
    units,
)

DESCRIPTION = [
    "tool for alpha",
    " Alpha is a tool. It does",
    " many things:",
    "  * it reads",
    "    files;",
    "  - it writes them.",
    " .",
    " An example:",
    "   alpha --all",
    "   beta",
    " 1. first",
    " That is all.",
]


def test_a_control_file_is_paragraphs_of_fields() -> None:
    text = "Package: a\nDescription-en: x: y\n more\n .\n end\n\n\nPackage: b\nTag: u,\n v\n"
    assert list(paragraphs(text.splitlines(keepends=False))) == [
        {"Package": ["a"], "Description-en": ["x: y", " more", " .", " end"]},
        {"Package": ["b"], "Tag": ["u,", " v"]},
    ]


def test_a_description_is_synopsis_prose_items_and_what_stays_as_it_is() -> None:
    assert units(DESCRIPTION) == [
        Unit("synopsis", "tool for alpha"),
        Unit("prose", "Alpha is a tool. It does many things:"),
        Unit("item", "it reads files;"),
        Unit("item", "it writes them."),
        Unit("prose", "An example:"),
        Unit("verbatim", "alpha --all beta"),
        Unit("item", "first"),
        Unit("prose", "That is all."),
    ]
    kinds = [unit.kind for unit in cleaned(DESCRIPTION, "en")]
    assert kinds == ["synopsis", "prose", "item", "item", "prose", "item", "prose"]
    assert [unit.text for unit in cleaned(DESCRIPTION, "en") if unit.kind == "item"] == [
        "it reads files",
        "it writes them",
        "first",
    ]


@pytest.mark.parametrize(
    ("raw", "language", "expected"),
    [
        ("the \u00ab mot \u00bb here", "fr", 'the "mot" here'),
        ("ein \u00bbWort\u00ab und \u00bbnoch eins\u00ab", "de", 'ein "Wort" und "noch eins"'),
        ("the \u201cword\u201d isn\u2019t", "en", 'the "word" isn\'t'),
        ("run ``make all'' or `gdialog' or `numpy.dot`", "en", 'run "make all" or "gdialog" or "numpy.dot"'),
        ("makes X *much* easier, **really**, and _beta_", "en", "makes X much easier, really, and beta"),
        (
            "N^2*ln(N), N*2^N, __DIR__, foo_bar, *.png and *.gif",
            "en",
            "N^2*ln(N), N*2^N, __DIR__, foo_bar, *.png and *.gif",
        ),
        ("see the [manual](http://x.org/a)", "en", "see the manual"),
        ("alpha \u2014 beta -- gamma, --all", "en", "alpha - beta - gamma, --all"),
        ("soft\u00adware\u200b\u00a0 and   blanks\u2026", "en", "software and blanks..."),
    ],
)
def test_markup_and_typography_are_removed(raw: str, language: str, expected: str) -> None:
    assert clean(raw, language) == expected


def test_what_is_not_language_or_was_not_translated() -> None:
    assert is_placeholder("transitional dummy package for foo")
    assert is_placeholder("set of plugins (metapackage)")
    assert not is_placeholder("crash test dummies as a library")
    assert is_language("simple library 2")
    assert not is_language("0.1 - 0.2 = x")
    assert not is_language("libfoo")
    assert is_copy("Reads MOD, XM, S3M, IT and MTM files", "reads mod XM S3M IT and MTM files.")
    assert is_copy("a b c d e f", "a b c d e g")
    assert not is_copy("alpha beta gamma delta five", "alpha beta gamma delta cinque")


def test_pairs_correspond() -> None:
    """All units of equal structures, synopsis and prose of equal numbers of paragraphs, else the synopsis alone."""
    english = [Unit("synopsis", "the one tool"), Unit("prose", "it does things"), Unit("item", "reads all files")]
    other = [Unit("synopsis", "lo strumento unico"), Unit("prose", "fa delle cose"), Unit("item", "legge i file")]
    expected = [(e.text, o.text) for e, o in zip(english, other, strict=True)]
    assert list(pairs(english, other)) == expected
    assert list(pairs(english, other[:2])) == expected[:2]
    assert list(pairs(english, [*other[:2], Unit("prose", "e altre ancora")])) == expected[:1]


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        ("two words", "due parole", True),
        ("single", "una parola", False),
        ("two words", "cinque parole invece di due", True),
        ("two words", "sono sei parole invece di due", False),
        ("word " * 120, "parola " * 120, True),
        ("word " * 121, "parola " * 120, False),
        ("the same text", "The same text.", False),
        ("1 2 3", "4 5 6", False),
    ],
)
def test_pairs_are_of_similar_and_bounded_length(one: str, other: str, fits: bool) -> None:
    assert bool(list(pairs([Unit("synopsis", one.strip())], [Unit("synopsis", other.strip())]))) == fits


def test_sentences_count_without_case_punctuation_and_numbers() -> None:
    assert list(sentences("It is GCC 12. See (here): a, b!")) == ["it is gcc 0", "see here", "a b"]
    assert list(sentences("it is GCC 13; see here")) == ["it is gcc 0", "see here"]


def test_no_sentence_of_training_data_is_held_out_and_groups_stay_together() -> None:
    draw = random.Random(1)
    common = [f"This is common thing number {'abcdefgh'[i]}." for i in range(8)]
    examples = []
    for group in range(300):
        for i in range(draw.randint(1, 3)):
            own = f"Something of {'x' * group} alone {'y' * i}."
            text = f"{own} {draw.choice(common)}" if draw.random() < 0.3 else own
            examples.append(Example(f"group{group}", text, (text, text.replace("thing", "cosa"))))
    sets = split(examples, 40)
    said = {
        name: {s for example in chosen for text in example.texts for s in sentences(text)}
        for name, chosen in sets.items()
    }
    groups = {name: {example.group for example in chosen} for name, chosen in sets.items()}
    for one, other in (("train", "test"), ("train", "valid"), ("test", "valid")):
        assert not said[one] & said[other]
        assert not groups[one] & groups[other]
    assert all(40 <= len(sets[name]) <= 41 for name in ("test", "valid"))
    # what was left out was held out with a group, and says what another group says too
    lost = {e for e in examples if e.group in groups["test"] | groups["valid"]} - {*sets["test"], *sets["valid"]}
    assert lost
    assert all(any(s in {*map(str.lower, [c.rstrip(".") for c in common])} for s in sentences(e.key)) for e in lost)
    assert split(list(reversed(examples)), 40).keys() == sets.keys()


def test_what_is_said_twice_is_kept_once_and_large_groups_are_trained_on() -> None:
    twice = [Example(f"group{n}", "the same", ("the same",)) for n in range(50)]
    large = [Example("large", f"large {'z' * n}", (f"large {'z' * n}",)) for n in range(200)]
    small = [Example(f"small{n}", f"small {'z' * n}", (f"small {'z' * n}",)) for n in range(200)]
    sets = split([*twice, *large, *small], 20)
    assert [e.key for chosen in sets.values() for e in chosen].count("the same") == 1
    assert {e.group for e in sets["test"] + sets["valid"]}.isdisjoint({"large"})
    assert sum(e.group == "large" for e in sets["train"]) == 200


@pytest.mark.parametrize(
    "reader",
    [
        lambda text: is_copy(f"a{text}a", "a"),
        lambda text: units(["a", *[" a"] * len(text)]),
    ],
    ids=["word", "lines"],
)
@pytest.mark.parametrize("unit", ["!", "1", "1."])
def test_long_descriptions_take_no_longer_than_their_length(reader: Callable[[str], Any], unit: str) -> None:
    """At most some tenths of a second for a million characters or lines; the square of that would be minutes."""
    began = time.process_time()
    reader(unit * (1_000_000 // len(unit)))
    assert time.process_time() - began < 10

"""Tokenizing, normalising, cleaning, splitting, markup: each trap by a case made by hand or by the Perl scripts.

The files *_perl.json hold what transcriptions of the Moses scripts print, run by Perl; each names the script.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_residuals.lab.data import clean, parallel_text
from fairseq_residuals.lab.data.bpe import Encode
from fairseq_residuals.lab.data.clean import Limits
from fairseq_residuals.lab.data.moses import (
    Blanks,
    Chain,
    Detokenize,
    Normalize,
    PlainApostrophe,
    RemoveNonPrinting,
    Tokenize,
)
from fairseq_residuals.wirings.core.errors import UserError

HERE = Path(__file__).parent
LANGUAGES = ("en", "de", "fr", "cs")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("dashes", (False, True))
@pytest.mark.parametrize("split_last_period", (True, False))
def test_tokenizer_prints_what_the_script_prints(language: str, dashes: bool, split_last_period: bool) -> None:
    printed = json.loads((HERE / "tokenizer_perl.json").read_text())
    flags = (" -a" if dashes else "") + ("" if split_last_period else " without_last_word_rule")
    tokenize = Tokenize(language, dashes, split_last_period)
    assert [" ".join(tokenize(line).split()) for line in printed["lines"]] == printed[f"{language}{flags}"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_normalizer_prints_what_the_script_prints(language: str) -> None:
    printed = json.loads((HERE / "normalizer_perl.json").read_text())
    assert [Normalize(language)(line) for line in printed["lines"]] == printed[language]


def test_non_printing_characters_become_blanks() -> None:
    """Zero-width space, bell, tab, soft hyphen, a noncharacter, private use: as Perl's \\p{C}."""
    assert RemoveNonPrinting()("a\u200bb\x07c\tz\xadq\ufdd0e\ue000") == "a b c z q e "


def test_small_functions_one_after_the_other() -> None:
    assert Chain((PlainApostrophe(), Blanks(), str.lower))(" It\u2019s\u2028 A\u00a0B\r") == "it's a b"
    assert (
        Detokenize("de")("Er sagte : &quot; Das ist es &quot; , ok ? 5 @-@ mal") == 'Er sagte: "Das ist es", ok? 5-mal'
    )


def kept(pairs: list[tuple[str, str]], *limits: float) -> list[tuple[str, ...]]:
    return list(clean.keep(pairs, Limits(int(limits[0]), int(limits[1]), *limits[2:])))


def test_cleaning_limits_are_inclusive() -> None:
    pairs = [("a b", "a b c"), ("a b", "a b c d"), ("a", "a"), ("a b c d e", "a b c d"), ("", "a b"), ("a b", "  ")]
    assert kept(pairs, 2, 4, 1.5) == [("a b", "a b c")]
    assert kept(pairs, 1, 5, 1.5) == [("a b", "a b c"), ("a", "a"), ("a b c d e", "a b c d")]
    assert kept([("a", " ".join("b" * 9)), ("a", " ".join("b" * 10))], 1, 80) == [("a", "b b b b b b b b b")]


def test_cleaning_drops_endless_words_and_collapses_blanks() -> None:
    assert kept([(" a\u00a0 b\t", "x" * 1000), ("a", "x" * 1001)], 1, 9) == [("a b", "x" * 1000)]


def test_cleaning_removes_bars_unless_the_first_pair_has_one() -> None:
    assert kept([("a", "b"), ("a|b", "| c")], 1, 9) == [("a", "b"), ("ab", "c")]
    assert kept([("a|N", "b"), ("a|b", "c")], 1, 9) == [("a|N", "b"), ("a|b", "c")]
    with pytest.raises(UserError, match="line 2 has a blank factor"):
        kept([("a|N", "b"), ("a |b", "c")], 1, 9)


def two(folder: Path, source: bytes, target: bytes) -> list[Path]:
    paths = [folder / "x.en", folder / "x.de"]
    for path, contents in zip(paths, (source, target), strict=True):
        path.write_bytes(contents)
    return paths


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    """Not at the other characters that Python and its codecs break lines at; a last line needs no end."""
    paths = two(tmp_path, "a\u2028b\x85c\x0cd\x1ce\nf".encode(), b"A\nF\n")
    assert list(clean.zipped(paths)) == [("a\u2028b\x85c\x0cd\x1ce", "A"), ("f", "F")]


def test_unequal_numbers_of_lines_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="differ in their numbers of lines"):
        clean.check_parallel(two(tmp_path, b"a\nb\n", b"a\n"))
    clean.check_parallel(two(tmp_path, b"a\nb\n", b"a\nb"))


def test_every_nth_line_is_taken_as_awk_takes_it(tmp_path: Path) -> None:
    lines = b"".join(b"%d\n" % n for n in range(1, 8))
    paths = two(tmp_path, lines, lines)
    train, valid = ([tmp_path / f"{name}.{lang}" for lang in ("en", "de")] for name in ("train", "valid"))
    clean.split(paths, train, valid, 3)
    for others, taken in zip(train, valid, strict=True):
        assert (others.read_text().split(), taken.read_text().split()) == (["1", "2", "4", "5", "7"], ["3", "6"])


def test_segments_of_sgm_files() -> None:
    lines = [
        '<refset setid="x"><doc docid="segment">',
        "<hl>",
        '<seg id="1">  One &amp; two. </seg>',
        '<SEG id="2">Upper case</SEG>',
        '<seg id="3">over',
        "two  lines",
        "</seg>",
        '<seg id="4"></seg>',
        "</doc></refset>",
    ]
    assert list(parallel_text.segments("\n".join(lines))) == ["One &amp; two.", "Upper case", "over two lines", ""]
    lines = ['<seg id="1">One.</seg> <seg id="2">Two.</seg><SEG>Three', 'lines</seg ><seg id="4">Four.</seg>']
    assert list(parallel_text.segments("\n".join(lines))) == ["One.", "Two.", "Three lines", "Four."]


def test_talks_lose_addresses_but_keep_titles() -> None:
    lines = ["<url>http://x</url>", "<talkid>9</talkid>", "<keywords>a</keywords>", "<title>T</title>"]
    lines += ["<description>D d</description>", " Said. ", "<reviewer>r</reviewer>"]
    assert list(parallel_text.talks(lines)) == ["T", "D d", " Said. ", "<reviewer>r</reviewer>"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("<seg>a <seg>b</seg>", "is not closed"),
        ("<seg>a</seg> <seg>b", "is not closed"),
        ("<seg>a</seg> b</seg>", "closes no <seg>"),
    ],
)
def test_segments_that_would_be_lost(line: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        list(parallel_text.segments(line))


@pytest.mark.parametrize("merges", ["#version: x\na b\n", "#version: 0.2\na b c\n", "a\n"])
def test_a_file_without_merges_is_named(tmp_path: Path, merges: str) -> None:
    (tmp_path / "codes").write_text(merges)
    with pytest.raises(UserError, match=r"codes has no merges that subword-nmt can read: .*invalid li"):
        Encode(tmp_path / "codes")("a b")

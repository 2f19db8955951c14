"""The corpus: both sides of a pair say the same thing, and no split has seen another's sentences."""

import datetime as dt
import hashlib
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from babel.numbers import parse_decimal
from hypothesis import given
from hypothesis import strategies as st

from fairseq_residuals.lab.data import synthetic as cldr

DAY = dt.date(2024, 3, 5)
ENGLISH_UNITS = {"second": "seconds", "minute": "minutes", "hour": "hours", "day": "days", "week": "weeks"}
GERMAN_UNITS = {  # singular, plural, dative plural
    "second": ("Sekunde", "Sekunden", "Sekunden"),
    "minute": ("Minute", "Minuten", "Minuten"),
    "hour": ("Stunde", "Stunden", "Stunden"),
    "day": ("Tag", "Tage", "Tagen"),
    "week": ("Woche", "Wochen", "Wochen"),
}
ENGLISH_POWERS = {"million": 10**6, "billion": 10**9}
GERMAN_POWERS = {"Millionen": 10**6, "Milliarden": 10**9}

numbers = st.decimals("0.01", "99999.99", places=2).map(cldr._stripped)


def both(phrase: cldr.Phrase) -> tuple[str, str]:
    return phrase.text(cldr.SOURCE), phrase.text(cldr.TARGET)


def number_in(text: str, locale: str) -> Decimal:
    found = re.search(r"\d[\d.,]*", text)
    assert found, text
    return parse_decimal(found[0].rstrip(".,"), locale=locale, strict=True)


@given(numbers)
def test_numbers_parse_back(value):
    for style, ending in (("plain", ""), ("percent", "%")):
        english, german = both(cldr.number(value, style))
        assert (number_in(english, "en"), number_in(german, "de")) == (value, value)
        assert english.endswith(ending)
        assert german.endswith(f" {ending}".rstrip())


@given(st.integers(11, 9999), st.sampled_from([5, 8]))
def test_powers_of_ten_in_words_parse_back(digits, exponent):
    value = Decimal(digits) * 10**exponent
    english, german = (side.split() for side in both(cldr.number(value, "words")))
    assert number_in(english[0], "en") * ENGLISH_POWERS[english[1]] == value
    assert number_in(german[0], "de") * GERMAN_POWERS[german[1]] == value


@given(st.integers(1, 99), st.sampled_from(sorted(cldr.TIME_UNITS)), st.sampled_from(["", "in", "ago"]))
def test_durations_say_the_same_count_unit_and_direction(count, unit, direction):
    signed = -count if direction == "ago" else count
    english, german = both(cldr.duration(signed, unit, relative=bool(direction)))
    singular, plural, dative = GERMAN_UNITS[unit]
    english_span = f"{count} {unit if count == 1 else ENGLISH_UNITS[unit]}"
    german_span = f"{count} {singular if count == 1 else dative if direction else plural}"
    assert english == {"": english_span, "in": f"in {english_span}", "ago": f"{english_span} ago"}[direction]
    assert german == {"": german_span, "in": f"in {german_span}", "ago": f"vor {german_span}"}[direction]


@pytest.mark.parametrize(
    ("phrase", "english", "german"),
    [
        (cldr.day(DAY, "full"), "Tuesday, March 5, 2024", "Dienstag, 5. März 2024"),
        (cldr.day(DAY, "short"), "3/5/24", "05.03.24"),
        (cldr.clock(dt.time(15, 4, 9), "medium"), "3:04:09 PM", "15:04:09"),
        (cldr.moment(dt.datetime(2024, 3, 5, 15, 4, 9), "medium"), "Mar 5, 2024, 3:04:09 PM", "05.03.2024, 15:04:09"),
        (cldr.country("AT"), "Austria", "Österreich"),
        (cldr.language("fr"), "French", "Französisch"),
        (cldr.quantity(Decimal(1), "length-mile"), "1 mile", "1 Meile"),
        (cldr.quantity(Decimal("2.5"), "length-mile"), "2.5 miles", "2,5 Meilen"),
        (cldr.money(Decimal("1.00"), "GBP", "name"), "1.00 British pounds", "1,00 Britische Pfund"),
        (cldr.money(Decimal("1234.50"), "EUR", "standard"), "€1,234.50", "1.234,50 €"),
        (
            cldr.joined(tuple(map(cldr.country, ("FR", "IT", "ES")))),
            "France, Italy, and Spain",
            "Frankreich, Italien und Spanien",
        ),
        (
            cldr.joined((cldr.language("de"), cldr.language("nl")), "or"),
            "German or Dutch",
            "Deutsch oder Niederländisch",
        ),
    ],
)
def test_phrases_read_as_a_german_speaker_writes_them(phrase, english, german):
    assert both(phrase) == (english, german)


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[cldr.Pair]]:
    return cldr.make_corpus({"train": 3000, "valid": 200, "test": 200}, seed=5)


def test_splits_have_their_sizes_and_share_no_source_and_no_target(corpus):
    assert {split: len(pairs) for split, pairs in corpus.items()} == {
        "train": 3000,
        "valid": 200,
        "test": 200,
    }
    pairs = [pair for split in corpus.values() for pair in split]
    assert len({pair.en for pair in pairs}) == len({pair.de for pair in pairs}) == 3400


def test_a_sentence_that_says_what_another_said_is_dropped_whatever_its_order_and_style(monkeypatch):
    country = cldr.country("AT")
    said = (cldr.day(DAY, "long"), country)
    again = (country, cldr.day(DAY, "short"))
    another = (cldr.day(DAY, "long"),)
    drawn = iter([(said, cldr.joined(said)), (again, cldr.joined(again, "or")), (another, cldr.joined(another))])
    monkeypatch.setattr(cldr, "draw_sentence", lambda rng: next(drawn))
    stream = cldr.draw_pairs(0)
    expected = [both(cldr.joined(phrases)) for phrases in (said, another)]
    assert [next(stream) for _ in range(2)] == expected


def test_sentences_are_words_with_single_plain_spaces(corpus):
    for pair in (pair for split in corpus.values() for pair in split):
        for side in pair:
            assert side
            assert re.fullmatch(r"\S+( \S+)*", side)


def test_every_kind_of_phrase_and_both_joins_occur(corpus):
    german = "\n".join(pair.de for pair in corpus["train"])
    for expected in (
        "Montag",
        "%",
        "€",
        "Millionen",
        "vor ",
        " Meilen",
        "Deutschland",
        "Deutsch",
        " und ",
        " oder ",
    ):
        assert expected in german, expected


def test_the_corpus_depends_on_the_seed_alone():
    """Also under another hash seed, which reorders sets of strings."""
    program = (
        "import importlib.util as u, hashlib, sys; spec = u.spec_from_file_location('cldr', sys.argv[1]); "
        "sys.modules['cldr'] = cldr = u.module_from_spec(spec); spec.loader.exec_module(cldr); "
        "print(hashlib.sha256(repr(cldr.make_corpus({'train': 300}, seed=1)).encode()).hexdigest())"
    )
    here = hashlib.sha256(repr(cldr.make_corpus({"train": 300}, seed=1)).encode()).hexdigest()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", program, cldr.__file__]
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == here
    assert cldr.make_corpus({"train": 300}, seed=2) != cldr.make_corpus({"train": 300}, seed=1)


def test_written_files_are_parallel(corpus, tmp_path: Path):
    cldr.write_corpus(tmp_path, corpus)
    for split, pairs in corpus.items():
        sides = [(tmp_path / f"{split}.{language}").read_text("utf-8").splitlines() for language in ("en", "de")]
        assert list(zip(*sides, strict=True)) == pairs


def test_the_command_writes_every_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cldr, "make_corpus", lambda sizes: {split: [cldr.Pair("one", "eins")] for split in sizes})
    cldr.main([str(tmp_path / "new/text")])
    written = {path.name: path.read_text() for path in (tmp_path / "new/text").iterdir()}
    assert written == {
        f"{s}.{lang}": f"{w}\n" for s in ("train", "valid", "test") for lang, w in (("en", "one"), ("de", "eins"))
    }


def test_a_text_of_the_user_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test.en").write_text("mine\n")
    with pytest.raises(SystemExit):
        cldr.main([str(tmp_path)])
    assert f"{tmp_path / 'test.en'} is there already: name another folder" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("test.en", "mine\n")]

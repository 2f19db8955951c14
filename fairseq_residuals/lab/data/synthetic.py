"""English-German parallel text made on the spot from the Unicode CLDR data that Babel carries.

Both sides of a pair are one value (a date, a price, a list of countries, ...) that Babel puts into words in
two locales: the German is CLDR's own and no translation is written here. A sentence joins one to three such
phrases with CLDR's list patterns. Non-breaking spaces become plain ones.
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from babel import Locale
from babel.dates import format_date, format_datetime, format_time, format_timedelta
from babel.lists import format_list
from babel.localedata import LocaleDataDict, load
from babel.numbers import (
    format_compact_decimal,
    format_currency,
    format_decimal,
    format_percent,
    get_currency_precision,
    get_territory_currencies,
)
from babel.units import format_unit

SOURCE, TARGET = Locale("en"), Locale("de")

Join = Literal["standard", "or"]
JOINS: tuple[Join, ...] = ("standard", "or")
DateStyle = Literal["short", "medium", "long", "full"]
DATE_STYLES: tuple[DateStyle, ...] = ("short", "medium", "long", "full")
TimeUnit = Literal["second", "minute", "hour", "day", "week"]
TIME_UNITS: tuple[TimeUnit, ...] = ("second", "minute", "hour", "day", "week")


@dataclass(frozen=True)
class Phrase:
    """A value that CLDR has words for. Phrases are equal when their values are, whatever their styles."""

    value: tuple[object, ...]
    """The kind of the phrase, and what it says."""
    say: Callable[[Locale], str] = field(compare=False)
    """A function that puts the value into words."""

    def text(self, locale: Locale) -> str:
        """Return the value in the words of ``locale``, with single plain blanks."""
        return " ".join(self.say(locale).split())


def joined(items: Sequence[Phrase], join: Join = "standard") -> Phrase:
    """Join phrases by CLDR's list pattern: "A, B, and C" or "A, B, or C"; one phrase stands as it is."""
    return Phrase(
        ("list", join, *items), lambda locale: format_list([item.say(locale) for item in items], join, locale)
    )


def day(date: dt.date, style: DateStyle) -> Phrase:
    return Phrase(("day", date), lambda locale: format_date(date, style, locale))


def clock(time: dt.time, style: Literal["short", "medium"]) -> Phrase:
    return Phrase(("clock", time), lambda locale: format_time(time, style, locale=locale))


def moment(when: dt.datetime, style: Literal["short", "medium"]) -> Phrase:
    return Phrase(("moment", when), lambda locale: format_datetime(when, style, locale=locale))


def duration(count: int, unit: TimeUnit, relative: bool) -> Phrase:
    """Say how long; ``relative``: as seen from now ("in 3 days", "3 days ago")."""
    delta = dt.timedelta(**{f"{unit}s": count})

    def say(locale: Locale) -> str:
        # An endless threshold keeps Babel from rounding 40 days to "1 month".
        return format_timedelta(delta, granularity=unit, threshold=float("inf"), add_direction=relative, locale=locale)

    return Phrase(("duration", count, unit, relative), say)


def number(value: Decimal, style: Literal["plain", "percent", "words"]) -> Phrase:
    """Say a number: plain, in per cent ("12.5%"), or with its power of ten in words ("1.2 million")."""

    def say(locale: Locale) -> str:
        if style == "percent":
            return format_percent(value / 100, locale=locale, decimal_quantization=False)
        if style == "words":
            return format_compact_decimal(value, format_type="long", locale=locale, fraction_digits=1)
        return format_decimal(value, locale=locale, decimal_quantization=False)

    return Phrase(("number", value, style), say)


def quantity(value: Decimal, unit: str) -> Phrase:
    """Spell a CLDR unit out after a number of at most three decimals and no trailing zeros."""
    return Phrase(("quantity", value, unit), lambda locale: format_unit(value, unit, "long", locale=locale))


def money(amount: Decimal, currency: str, style: Literal["standard", "name"]) -> Phrase:
    """Say an amount in an ISO 4217 currency, with exactly the decimals that the currency has."""
    return Phrase(
        ("money", amount, currency),
        lambda locale: format_currency(amount, currency, locale=locale, format_type=style),
    )


def country(code: str) -> Phrase:
    return Phrase(("country", code), lambda locale: locale.territories[code])


def language(code: str) -> Phrase:
    return Phrase(("language", code), lambda locale: locale.languages[code])


class Pair(NamedTuple):
    en: str
    de: str


@cache
def countries() -> tuple[str, ...]:
    """Return countries and regions that both languages name, less CLDR's placeholders."""
    return tuple(sorted(SOURCE.territories.keys() & TARGET.territories.keys() - {"XA", "XB", "ZZ"}))


@cache
def languages() -> tuple[str, ...]:
    """Return the languages with an ISO 639-1 (two-letter) code that both languages name."""
    return tuple(sorted(code for code in SOURCE.languages.keys() & TARGET.languages.keys() if len(code) == 2))


@cache
def currencies() -> tuple[str, ...]:
    """Return legal tender somewhere on one fixed day: the corpus does not depend on today's date."""
    day = dt.date(2024, 1, 1)
    return tuple(sorted({c for t in countries() for c in get_territory_currencies(t, day, day)}))


@cache
def units() -> tuple[str, ...]:
    """Return the units that both languages spell out in singular and plural (Babel invents a form otherwise)."""

    def spelled_out(locale: Locale) -> set[str]:
        data: dict[Any, Any] = load(str(locale))
        patterns = LocaleDataDict(data)["unit_patterns"]
        return {unit for unit in patterns if {"one", "other"} <= set(patterns[unit].get("long") or ())}

    return tuple(sorted(spelled_out(SOURCE) & spelled_out(TARGET)))


def _date(rng: random.Random) -> dt.date:
    return dt.date(1900, 1, 1) + dt.timedelta(days=rng.randrange(200 * 365))


def _time(rng: random.Random) -> dt.time:
    return dt.time(rng.randrange(24), rng.randrange(60))


def _decimal(rng: random.Random, places: int) -> Decimal:
    """Return positive, with up to one to five digits (as likely each) before the point and ``places`` after it."""
    return Decimal(rng.randrange(1, 10 ** (rng.randint(1, 5) + places))).scaleb(-places)


def _stripped(number: Decimal) -> Decimal:
    """Strip trailing zeros, which would be counted for the plural though never printed."""
    return number.quantize(Decimal(1)) if number == number.to_integral() else number.normalize()


def _duration(rng: random.Random) -> Phrase:
    relative = rng.random() < 0.5
    count = rng.randint(1, 99)
    return duration(-count if relative and rng.random() < 0.5 else count, rng.choice(TIME_UNITS), relative)


def _number(rng: random.Random) -> Phrase:
    style = rng.choice(("plain", "percent", "words"))
    if style == "words":
        return number(Decimal(rng.randint(11, 9999)) * 10 ** rng.choice((5, 8)), "words")
    return number(_stripped(_decimal(rng, rng.randint(0, 2))), "percent" if style == "percent" else "plain")


def _money(rng: random.Random) -> Phrase:
    currency = rng.choice(currencies())
    return money(_decimal(rng, get_currency_precision(currency)), currency, rng.choice(("standard", "name")))


def _listing(rng: random.Random) -> Phrase:
    kind, codes = rng.choice(((country, countries()), (language, languages())))
    items = [kind(code) for code in rng.sample(codes, rng.randint(2, 4))]
    return joined(items, rng.choice(JOINS))


DRAW: tuple[Callable[[random.Random], Phrase], ...] = (
    lambda rng: day(_date(rng), rng.choice(DATE_STYLES)),
    lambda rng: clock(_time(rng), rng.choice(("short", "medium"))),
    lambda rng: moment(dt.datetime.combine(_date(rng), _time(rng)), rng.choice(("short", "medium"))),
    _duration,
    _number,
    lambda rng: quantity(_stripped(_decimal(rng, rng.randint(0, 2))), rng.choice(units())),
    _money,
    lambda rng: country(rng.choice(countries())),
    lambda rng: language(rng.choice(languages())),
    _listing,
)


def draw_sentence(rng: random.Random) -> tuple[tuple[Phrase, ...], Phrase]:
    """Return one to three phrases of random kinds, and the sentence that joins them."""
    phrases = tuple(rng.choice(DRAW)(rng) for _ in range(rng.randint(1, 3)))
    return phrases, joined(phrases, rng.choice(JOINS))


def draw_pairs(seed: int) -> Iterator[Pair]:
    """Yield pairs without end; no two mention the same values, or read the same in a language."""
    rng = random.Random(seed)
    seen: set[object] = set()
    while True:
        phrases, sentence = draw_sentence(rng)
        pair = Pair(sentence.text(SOURCE), sentence.text(TARGET))
        keys = {frozenset(phrases), *pair._asdict().items()}
        if seen.isdisjoint(keys):
            seen |= keys
            yield pair


def make_corpus(sizes: Mapping[str, int], seed: int = 0) -> dict[str, list[Pair]]:
    """Return disjoint splits of the sizes asked for, ``{"train": 30000, "test": 1000}``; the same for the same seed.

    Pairs are distinct in content, source and target over the whole corpus, and shuffled before they are dealt
    out, so that short sentences, which run out first, are as frequent in every split.
    """
    stream = draw_pairs(seed)
    pairs = [next(stream) for _ in range(sum(sizes.values()))]
    random.Random(seed).shuffle(pairs)
    dealt = iter(pairs)
    return {split: [next(dealt) for _ in range(size)] for split, size in sizes.items()}


def write_corpus(folder: Path, corpus: Mapping[str, Sequence[Pair]]) -> None:
    """Write ``<split>.en`` and ``<split>.de`` into ``folder``, one sentence a line."""
    for split, pairs in corpus.items():
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Write train, valid and test in both languages."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_residuals.lab.data.synthetic",
        description="Writes 20,000 pairs OUT/train.{en,de} and 500 each of valid and test, a sentence a line: dates, "
        "prices, countries and lists of them, as the Unicode CLDR has them in both languages.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder")
    out = parser.parse_args(argv).out
    sizes = {"train": 20_000, "valid": 500, "test": 500}
    for path in (path for split in sizes for path in out.glob(f"{split}.*")):
        parser.error(f"{path} is there already: name another folder, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    write_corpus(out, make_corpus(sizes))


if __name__ == "__main__":
    main()

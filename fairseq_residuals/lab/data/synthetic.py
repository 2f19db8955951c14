"""English-German parallel text made on the spot from the Unicode CLDR data that Babel carries.

Both sides of a pair are one value (a date, a price, a list of countries, ...) that Babel puts into words in
two locales: the German is CLDR's own and no translation is written here. A sentence joins one to three such
phrases with CLDR's list patterns. Non-breaking spaces become plain ones.
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
import sys
from abc import ABC, abstractmethod
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

from fairseq_residuals.wirings.core.errors import UserError

PROGRAM = "fairseq_residuals.lab.data.synthetic"
SOURCE, TARGET = Locale("en"), Locale("de")

Join = Literal["standard", "or"]
DateStyle = Literal["short", "medium", "long", "full"]
DATE_STYLES: tuple[DateStyle, ...] = ("short", "medium", "long", "full")
TimeUnit = Literal["second", "minute", "hour", "day", "week"]
SECONDS: dict[TimeUnit, int] = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}


class Phrase(ABC):
    """A value that CLDR has words for. Phrases are equal when their values are, whatever their styles."""

    @abstractmethod
    def text(self, locale: Locale) -> str:
        """Return the value in the words of ``locale``."""


@dataclass(frozen=True)
class Day(Phrase):
    date: dt.date
    style: DateStyle = field(default="long", compare=False)

    def text(self, locale: Locale) -> str:
        return format_date(self.date, self.style, locale)


@dataclass(frozen=True)
class Clock(Phrase):
    time: dt.time
    style: Literal["short", "medium"] = field(default="short", compare=False)

    def text(self, locale: Locale) -> str:
        return format_time(self.time, self.style, locale=locale)


@dataclass(frozen=True)
class Moment(Phrase):
    moment: dt.datetime
    style: Literal["short", "medium"] = field(default="medium", compare=False)

    def text(self, locale: Locale) -> str:
        return format_datetime(self.moment, self.style, locale=locale)


@dataclass(frozen=True)
class Duration(Phrase):
    """``count`` of one of SECONDS' units; ``relative``: as seen from now ("in 3 days", "3 days ago")."""

    count: int
    unit: TimeUnit
    relative: bool = False

    def text(self, locale: Locale) -> str:
        delta = dt.timedelta(seconds=self.count * SECONDS[self.unit])
        # An endless threshold keeps Babel from rounding 40 days to "1 month".
        return format_timedelta(
            delta, granularity=self.unit, threshold=float("inf"), add_direction=self.relative, locale=locale
        )


@dataclass(frozen=True)
class Number(Phrase):
    """A number: plain, in per cent ("12.5%"), or with its power of ten in words ("1.2 million")."""

    value: Decimal
    style: Literal["plain", "percent", "words"] = "plain"

    def text(self, locale: Locale) -> str:
        if self.style == "percent":
            return format_percent(self.value / 100, locale=locale, decimal_quantization=False)
        if self.style == "words":
            return format_compact_decimal(self.value, format_type="long", locale=locale, fraction_digits=1)
        return format_decimal(self.value, locale=locale, decimal_quantization=False)


@dataclass(frozen=True)
class Quantity(Phrase):
    """A number with a CLDR unit, spelled out; ``value`` has at most three decimals and no trailing zeros."""

    value: Decimal
    unit: str

    def text(self, locale: Locale) -> str:
        return format_unit(self.value, self.unit, "long", locale=locale)


@dataclass(frozen=True)
class Money(Phrase):
    """An amount in an ISO 4217 currency; ``amount`` has exactly the decimals that the currency has."""

    amount: Decimal
    currency: str
    style: Literal["standard", "name"] = field(default="name", compare=False)

    def text(self, locale: Locale) -> str:
        return format_currency(self.amount, self.currency, locale=locale, format_type=self.style)


@dataclass(frozen=True)
class Country(Phrase):
    code: str

    def text(self, locale: Locale) -> str:
        return locale.territories[self.code]


@dataclass(frozen=True)
class Language(Phrase):
    code: str

    def text(self, locale: Locale) -> str:
        return locale.languages[self.code]


@dataclass(frozen=True)
class Listing(Phrase):
    """Several phrases in CLDR's list pattern: "A, B, and C" or "A, B, or C"; one phrase stands as it is."""

    items: tuple[Phrase, ...]
    join: Join = "standard"

    def text(self, locale: Locale) -> str:
        return format_list([item.text(locale) for item in self.items], self.join, locale)


class Pair(NamedTuple):
    en: str
    de: str


def in_words(phrase: Phrase, locale: Locale) -> str:
    """Return the phrase in a language, with single plain blanks."""
    return " ".join(phrase.text(locale).split())


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


def _duration(rng: random.Random) -> Duration:
    relative = rng.random() < 0.5
    count = rng.randint(1, 99)
    return Duration(-count if relative and rng.random() < 0.5 else count, rng.choice(list(SECONDS)), relative)


def _number(rng: random.Random) -> Number:
    style = rng.choice(("plain", "percent", "words"))
    if style == "words":
        return Number(Decimal(rng.randint(11, 9999)) * 10 ** rng.choice((5, 8)), "words")
    return Number(_stripped(_decimal(rng, rng.randint(0, 2))), "percent" if style == "percent" else "plain")


def _money(rng: random.Random) -> Money:
    currency = rng.choice(currencies())
    amount = _decimal(rng, get_currency_precision(currency))
    return Money(amount, currency, rng.choice(("standard", "name")))


def _listing(rng: random.Random) -> Listing:
    kind, codes = rng.choice(((Country, countries()), (Language, languages())))
    items = tuple(kind(code) for code in rng.sample(codes, rng.randint(2, 4)))
    return Listing(items, rng.choice(("standard", "or")))


DRAW: tuple[Callable[[random.Random], Phrase], ...] = (
    lambda rng: Day(_date(rng), rng.choice(DATE_STYLES)),
    lambda rng: Clock(_time(rng), rng.choice(("short", "medium"))),
    lambda rng: Moment(dt.datetime.combine(_date(rng), _time(rng)), rng.choice(("short", "medium"))),
    _duration,
    _number,
    lambda rng: Quantity(_stripped(_decimal(rng, rng.randint(0, 2))), rng.choice(units())),
    _money,
    lambda rng: Country(rng.choice(countries())),
    lambda rng: Language(rng.choice(languages())),
    _listing,
)


def draw_sentence(rng: random.Random) -> Listing:
    """Return one to three phrases of random kinds, joined."""
    phrases = tuple(rng.choice(DRAW)(rng) for _ in range(rng.randint(1, 3)))
    return Listing(phrases, rng.choice(("standard", "or")))


def said_in(seed: int, languages: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield sentences by language without end; no two mention the same values, or read the same in any language."""
    rng = random.Random(seed)
    locales = {language: Locale(language) for language in ("en", *languages)}
    seen: set[object] = set()
    while True:
        sentence = draw_sentence(rng)
        said = {language: in_words(sentence, locale) for language, locale in locales.items()}
        keys = {frozenset(sentence.items), *said.items()}
        if seen.isdisjoint(keys):
            seen |= keys
            yield said


def make_corpus(sizes: Mapping[str, int], seed: int = 0) -> dict[str, list[Pair]]:
    """Return disjoint splits of the sizes asked for, ``{"train": 30000, "test": 1000}``; the same for the same seed.

    Pairs are distinct in content, source and target over the whole corpus, and shuffled before they are dealt
    out, so that short sentences, which run out first, are as frequent in every split.
    """
    stream = said_in(seed, ("de",))
    pairs = [Pair(**next(stream)) for _ in range(sum(sizes.values()))]
    random.Random(seed).shuffle(pairs)
    dealt = iter(pairs)
    return {split: [next(dealt) for _ in range(size)] for split, size in sizes.items()}


def write_corpus(folder: Path, corpus: Mapping[str, Sequence[Pair]]) -> None:
    """Write ``<split>.en`` and ``<split>.de`` into ``folder``, one sentence a line."""
    for split, pairs in corpus.items():
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Write train, valid and test in both languages, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Writes OUT/{train,valid,test}.{en,de}, a sentence a line: dates, prices, countries and "
        "lists of them, as the Unicode CLDR has them in both languages. The same numbers make the same sentences.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder")
    parser.add_argument("--train", type=int, default=20_000, metavar="N", help="pairs to train on (%(default)s)")
    parser.add_argument(
        "--held-out", type=int, default=500, metavar="N", help="pairs of valid, and of test (%(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        if min(args.train, args.held_out) < 1:
            raise UserError("--train and --held-out must be at least 1")
        args.out.mkdir(parents=True, exist_ok=True)
        write_corpus(args.out, make_corpus({"train": args.train, "valid": args.held_out, "test": args.held_out}))
    except OSError as error:
        print(f"{PROGRAM}: error: {args.out} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The Moses scripts that data recipes call, without Perl: sacremoses, and the differences that matter.

Each is a function from a line to a line that travels to other processes; its ``repr`` is its description.

What stays different from the Perl scripts: the version of Unicode, which is that of the library ``regex``; in Finnish,
Swedish and Catalan sacremoses lacks the special cases; ``str.lower`` ends a Greek word in a final sigma, which Perl's
``lc`` does not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import regex
from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

LANGUAGES = tuple(sorted(set(NonbreakingPrefixes().available_langs.values())))
"""Languages whose abbreviations the tokenizer knows; it tokenizes others as English."""
NON_PRINTING = regex.compile(r"\p{C}")
FINAL_PERIOD = re.compile(r"(\S+)\.$")

Function = Callable[[str], str]


def _with_unicode_classes(rule: tuple[Any, str]) -> tuple[Any, str]:
    """Return a rule of sacremoses with Perl's names in place of the characters that sacremoses lists for them."""
    pattern = rule[0].pattern
    for characters, name in (
        (MosesTokenizer.IsAlnum, r"\p{Alnum}"),
        (MosesTokenizer.IsAlpha, r"\p{Alphabetic}"),
        (MosesTokenizer.IsN, r"\p{N}"),
    ):
        pattern = pattern.replace(characters, name)
    return regex.compile(pattern), rule[1]


class PerlTokenizer(MosesTokenizer):  # type: ignore[misc]
    """tokenizer.perl before November 2018. sacremoses lists the letters of some scripts only and splits the others."""

    PAD_NOT_ISALNUM = _with_unicode_classes(MosesTokenizer.PAD_NOT_ISALNUM)
    AGGRESSIVE_HYPHEN_SPLIT = _with_unicode_classes(MosesTokenizer.AGGRESSIVE_HYPHEN_SPLIT)
    COMMA_SEPARATE_1 = _with_unicode_classes(MosesTokenizer.COMMA_SEPARATE_1)
    COMMA_SEPARATE_2 = _with_unicode_classes(MosesTokenizer.COMMA_SEPARATE_2)
    COMMA_SEPARATE_3 = _with_unicode_classes(MosesTokenizer.COMMA_SEPARATE_3)
    ENGLISH_SPECIFIC_APOSTROPHE = tuple(map(_with_unicode_classes, MosesTokenizer.ENGLISH_SPECIFIC_APOSTROPHE))
    FR_IT_SPECIFIC_APOSTROPHE = tuple(map(_with_unicode_classes, MosesTokenizer.FR_IT_SPECIFIC_APOSTROPHE))

    def islower(self, text: str) -> bool:
        return regex.fullmatch(r"\p{Lowercase}+", text) is not None

    def isanyalpha(self, text: str) -> bool:
        return regex.search(r"\p{Alphabetic}", text) is not None


class LastWordSplitTokenizer(PerlTokenizer):
    """tokenizer.perl since November 2018: the last word of a line is no abbreviation, so its period is split off."""

    def handles_nonbreaking_prefixes(self, text: str) -> str:
        words: list[str] = text.split()
        last = FINAL_PERIOD.fullmatch(words[-1]) if words else None
        if last is None:
            return str(super().handles_nonbreaking_prefixes(text))
        # The word before it is judged by how the last one begins, so that one is kept, with another end.
        head = str(super().handles_nonbreaking_prefixes(" ".join([*words[:-1], f"{last[1]}_"]))).split()[:-1]
        return " ".join([*head, last[1], "."])


@functools.cache
def _tokenizer(language: str, split_last_period: bool) -> MosesTokenizer:
    return (LastWordSplitTokenizer if split_last_period else PerlTokenizer)(language)


@functools.cache
def _normalizer(language: str) -> MosesPunctNormalizer:
    normalizer = MosesPunctNormalizer(language, perl_parity=True)
    normalizer.substitutions = [(re.compile(pattern), new) for pattern, new in normalizer.substitutions]
    return normalizer


@functools.cache
def _detokenizer(language: str) -> MosesDetokenizer:
    return MosesDetokenizer(language)


@dataclass(frozen=True)
class Normalize:
    """normalize-punctuation.perl LANGUAGE.

    The script keeps the line's end while it works, and one of its rules sees it: a period before a closing quotation
    mark moves behind it even at the end of a German or French line.
    """

    language: str

    def __call__(self, line: str) -> str:
        return str(_normalizer(self.language).normalize(f"{line}\n"))


@dataclass(frozen=True)
class ReplaceUnicodePunctuation:
    """replace-unicode-punctuation.perl."""

    def __call__(self, line: str) -> str:
        return str(_normalizer("en").replace_unicode_punct(line))


@dataclass(frozen=True)
class RemoveNonPrinting:
    """remove-non-printing-char.perl: a blank for each character of Unicode's category C."""

    def __call__(self, line: str) -> str:
        return NON_PRINTING.sub(" ", line)


@dataclass(frozen=True)
class Tokenize:
    """tokenizer.perl -l LANGUAGE; ``dashes`` is its flag -a, which splits words at hyphens.

    ``split_last_period=False`` is the script as it was before November 2018: a line may end in an abbreviation.
    """

    language: str
    dashes: bool = False
    split_last_period: bool = True

    def __call__(self, line: str) -> str:
        tokenizer = _tokenizer(self.language, self.split_last_period)
        return str(tokenizer.tokenize(line, aggressive_dash_splits=self.dashes, return_str=True))


@dataclass(frozen=True)
class Detokenize:
    """detokenizer.perl -l LANGUAGE."""

    language: str

    def __call__(self, line: str) -> str:
        return str(_detokenizer(self.language).detokenize(line.split()))


@dataclass(frozen=True)
class PlainApostrophe:
    """Typographic apostrophes (U+2019) become plain, as in the test sets of fairseq's scripts."""

    def __call__(self, line: str) -> str:
        return line.replace("\u2019", "'")


@dataclass(frozen=True)
class Blanks:
    """Single blanks between words and none around them: what whitespace of other kinds would do to later readers."""

    def __call__(self, line: str) -> str:
        return " ".join(line.split())


@dataclass(frozen=True)
class Chain:
    """One function after the other."""

    functions: tuple[Function, ...]

    def __call__(self, line: str) -> str:
        for function in self.functions:
            line = function(line)
        return line

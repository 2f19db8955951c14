"""Parallel text of random words: quick to make, the same on every machine, and quick to learn."""

from __future__ import annotations

import random

STEMS = [a + b + c for a in ("k", "l", "m", "p", "r", "st") for b in "aeiou" for c in ("n", "s", "t")]
ENDINGS = {"en": "ing", "de": "ung", "fr": "é", "cs": "ní", "zh": "的", "src": "ed", "tgt": "er"}
Lines = dict[str, list[str]]
"""Text by language."""


def random_lines(name: str, number: int, *languages: str) -> Lines:
    """Return ``number`` sentences of words, a comma and a period; a translation has the words with another ending.

    They are the same for a name whenever they are made.
    """
    draw = random.Random(name)
    lines: Lines = {language: [] for language in languages}
    for _ in range(number):
        words = draw.choices(STEMS, k=draw.randint(3, 9))
        for language in languages:
            ending = ENDINGS.get(language, language)
            first, *rest = [word + ending for word in words]
            lines[language].append(f"{first.capitalize()}, {' '.join(rest)}.")
    return lines

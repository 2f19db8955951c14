"""Test and validation data of which the training data hold no sentence, where neighbours say the same things."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_END = re.compile(r"(?<=[.!?:;])\s+")
_OTHER_THAN_WORDS = re.compile(r"\W+")
_DIGITS = re.compile(r"\d+")
LARGEST = 0.05
"""Of the size of a held-out set, the most that one group may contribute: the set is to be about many things."""


class Example(NamedTuple):
    """What a model learns from, or is tested on, at a time."""

    group: str
    """Examples of one group are all in the same data set."""
    key: str
    """Of examples of one data set with the same key only the first is kept."""
    texts: tuple[str, ...]
    note: str = ""
    """What goes with it and is not learned."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text in a form in which case, punctuation and the digits of numbers do not count."""
    for sentence in _END.split(text):
        if plain := _OTHER_THAN_WORDS.sub(" ", _DIGITS.sub("0", sentence.casefold())).strip():
            yield plain


def split(examples: Sequence[Example], size: int) -> dict[str, list[Example]]:
    """Divide examples into ``test`` and ``valid``, of at least ``size`` each, and ``train``.

    Groups go to test until it is large enough, then to valid, then to train, in the order of the SHA-256 of their
    names, which has nothing to do with what they are about; very large ones go to train. Of a group that is held out,
    examples that share a sentence with another group are in no data set.
    """
    groups: defaultdict[str, list[tuple[Example, tuple[str, ...]]]] = defaultdict(list)
    owner: dict[str, str] = {}
    shared: set[str] = set()
    for example in examples:
        said = tuple(sentence for text in example.texts for sentence in sentences(text))
        groups[example.group].append((example, said))
        shared.update(sentence for sentence in said if owner.setdefault(sentence, example.group) != example.group)
    sets: dict[str, dict[str, Example]] = {"test": {}, "valid": {}, "train": {}}
    for group in sorted(groups, key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
        small = len(groups[group]) <= LARGEST * size
        name = next((name for name in ("test", "valid") if small and len(sets[name]) < size), "train")
        for example, said in groups[group]:
            if name == "train" or shared.isdisjoint(said):
                sets[name].setdefault(example.key, example)
    return {name: list(kept.values()) for name, kept in sets.items()}

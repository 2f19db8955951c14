"""Parallel text: what the recipes of translation (and of summarization) have in common."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from fairseq_residuals.lab.data import bpe, clean
from fairseq_residuals.lab.data.binarize import binarize, write_dictionary
from fairseq_residuals.lab.data.clean import Limits
from fairseq_residuals.lab.data.corpus import Job, Variant, check_lines
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.moses import Blanks, Chain, Function
from fairseq_residuals.lab.data.parallel_map import lines_of, map_lines
from fairseq_residuals.lab.data.steps import Step, share
from fairseq_residuals.wirings.core.errors import UserError

Markup = Literal["plain", "sgm", "ted"]
"""A sentence a line; a <seg> a sentence; a sentence a line, with TED's tags between and around them."""

OPENING = re.compile(r"<seg(?:\s[^<>]*)?>", re.IGNORECASE)
CLOSING = re.compile(r"</seg\s*>", re.IGNORECASE)
OPENED = re.compile(r"<seg[\s>]", re.IGNORECASE)
LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
STRIPPED = re.compile(r"</?(?:title|description)>")


def segments(text: str) -> Iterator[str]:
    """Yield the text of each <seg>, which may go over several lines. Entities such as ``&amp;`` stay as they are.

    Raises:
        UserError: a <seg> is not closed before the next begins, or is closed and was not opened.
    """
    *closed, rest = CLOSING.split(text)
    for part in closed:
        _, *opened = OPENING.split(part)
        if not opened:
            raise UserError(f"a </seg> closes no <seg>: {part[-60:]!r}")
        if len(opened) > 1:
            raise UserError(f"a <seg> is not closed: {opened[0][:60]!r}")
        yield " ".join(opened[0].split())
    if OPENED.search(rest):
        raise UserError(f"a <seg> is not closed: {rest[:60]!r}")


def talks(lines: Iterable[str]) -> Iterator[str]:
    """Yield TED's training lines: without addresses and keywords; titles and descriptions lose their tags alone."""
    for line in lines:
        if not any(tag in line for tag in LEFT_OUT):
            yield STRIPPED.sub("", line)


def sentences(path: Path, markup: Markup) -> Iterator[str]:
    """Yield the sentences of a file, raw.

    Raises:
        UserError: a file that should have segments has none, or one is not closed.
    """
    if markup == "plain":
        yield from lines_of(path)
    elif markup == "ted":
        yield from talks(lines_of(path))
    else:
        found = list(segments(path.read_text(encoding="utf-8", errors="replace")))
        if not found:
            raise UserError(f"{path} has no <seg>: it is no sgm file")
        yield from found


Treatment = Callable[[str], tuple[Function, ...]]
"""A function from a language to what is done to each line of it."""


def untouched(language: str) -> tuple[Function, ...]:
    """Return text that comes tokenized."""
    return (Blanks(),)


@dataclass(frozen=True)
class Part:
    """Files of parallel text, in the archive they come in.

    In ``path``, ``{lang}`` is the language, and ``{side}`` is src for the source language and ref for the target, as
    WMT names its sgm files.
    """

    source: Source
    path: str
    markup: Markup = "plain"
    paths: Mapping[str, str] = field(default_factory=dict)
    """Paths by language, for files that follow no pattern."""
    references: int = 0
    """Targets per sentence if there are several; ``path`` then names the first, number 0."""

    def file(self, language: str, languages: Sequence[str]) -> str:
        side = "src" if language == languages[0] else "ref"
        return self.paths.get(language) or self.path.format(lang=language, side=side)

    def reference(self, number: int, languages: Sequence[str]) -> str:
        """Return the file of another reference."""
        return self.file(languages[1], languages).removesuffix("0") + str(number)

    def files(self, languages: Sequence[str]) -> tuple[str, ...]:
        further = (self.reference(number, languages) for number in range(1, self.references))
        return (*(self.file(language, languages) for language in languages), *further)


@dataclass(frozen=True)
class Bpe:
    """subword-nmt: learned on the training data of both languages together, or of each (``joint=False``), or given."""

    merges: int = 0
    joint: bool = True
    codes: tuple[Source, str] | None = None
    whole: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parallel:
    """The recipe of a parallel corpus; the order of the fields is that in which they apply."""

    languages: tuple[str, str]
    train: tuple[Part, ...]
    tests: Mapping[str, tuple[Part, ...]]
    valid: tuple[Part, ...] | int
    """Files, or N: each N-th line of the training data is taken out of it."""
    treat_train: Treatment
    treat_held_out: Treatment
    limits: Limits | None = None
    """Limits on training data, in words, before it is split and encoded."""
    bpe: Bpe | None = None
    limits_encoded: Limits | None = None
    """Limits on training data, and on validation data that were taken out of it, in subwords."""
    dictionary: tuple[str, ...] = ("--joined-dictionary",)
    """Flags of fairseq-preprocess."""
    vocabulary: tuple[Source, str] | None = None
    """A file that lists the dictionary, a word a line, if it is not to be collected from the training data."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Known numbers of lines of the published data by test set, ``valid`` and (before all cleaning) ``train``."""

    def variant(self, summary: str) -> Variant:
        """Return this recipe as a corpus's variant."""
        return Variant(lambda job: Pipeline(self, job).results(), tuple(self.archives()), summary, subsets(self))

    def archives(self) -> dict[Source, tuple[str, ...]]:
        """Return the sources and what is wanted of each."""
        wanted: dict[Source, dict[str, None]] = {}
        held_out = self.valid if isinstance(self.valid, tuple) else ()
        for part in (*self.train, *held_out, *(part for parts in self.tests.values() for part in parts)):
            wanted.setdefault(part.source, {}).update(dict.fromkeys(part.files(self.languages)))
        for source, path in filter(None, (self.bpe.codes if self.bpe else None, self.vocabulary)):
            wanted.setdefault(source, {})[path] = None
        return {source: tuple(paths) for source, paths in wanted.items()}


def subsets(recipe: Parallel) -> dict[str, str]:
    """Return fairseq's names for the test sets: the first is test, the next test1."""
    return {name: f"test{number or ''}" for number, name in enumerate(recipe.tests)}


class Pipeline:
    """The steps of one recipe in one job."""

    def __init__(self, recipe: Parallel, job: Job, extracted: Mapping[Source, Step] | None = None) -> None:
        """Make the steps, none of which is done yet.

        Args:
            extracted: steps that make the files of a source, where that is more than unpacking an archive.
        """
        self.recipe, self.job, self.languages = recipe, job, recipe.languages
        self.expected = job.lines(recipe.lines)
        self.names = {"valid": "valid"} | {subset: name for name, subset in subsets(recipe).items()}
        made = extracted or {}
        self.unpacked = {
            source: made[source] if source in made else job.unpacked(source, wanted)
            for source, wanted in recipe.archives().items()
        }

    def results(self) -> tuple[Step, ...]:
        recipe = self.recipe
        held_out = recipe.valid if isinstance(recipe.valid, tuple) else ()
        described = {"train": recipe.train, "valid": held_out, "tests": dict(recipe.tests), "lines": self.expected}
        raw = Step("raw", self.extract, described, tuple(self.unpacked.values()))
        treatment = {
            language: [repr(recipe.treat_train(language)), repr(recipe.treat_held_out(language))]
            for language in self.languages
        }
        tokenized = Step("work/tokenized", self.treat, {**described, **treatment}, (raw, *self.unpacked.values()))
        shared = {"limits": recipe.limits, "every": recipe.valid if isinstance(recipe.valid, int) else None}
        cleaned = Step("work/cleaned", self.clean, shared, (tokenized,))
        encoded = cleaned
        if recipe.bpe is not None:
            merges = self.job.size("merges", recipe.bpe.merges)
            parameters = {"bpe": recipe.bpe, "merges": merges}
            given = (self.unpacked[recipe.bpe.codes[0]],) if recipe.bpe.codes else ()
            codes = Step("codes", self.learn, parameters, (cleaned, *given))
            encoded = Step("work/encoded", self.encode, parameters, (cleaned, codes))
        text = Step("text", self.finish, {"limits": recipe.limits_encoded}, (encoded,))
        listed = (self.unpacked[recipe.vocabulary[0]],) if recipe.vocabulary else ()
        binary = Step("data-bin", self.binarize, {"flags": recipe.dictionary}, (text, *listed))
        return (raw, *((codes,) if recipe.bpe else ()), text, binary)

    def _held_out(self) -> dict[str, tuple[Part, ...]]:
        """Return the held-out data sets that come as files, under fairseq's names."""
        valid = {"valid": self.recipe.valid} if isinstance(self.recipe.valid, tuple) else {}
        return valid | {subset: self.recipe.tests[name] for name, subset in subsets(self.recipe).items()}

    def _paths(self, folder: Path, name: str) -> list[Path]:
        return [folder / f"{name}.{language}" for language in self.languages]

    def extract(self, folder: Path, *unpacked: Path) -> None:
        """Write the held-out data as published, without markup: NAME.LANGUAGE, and further references NAME.en1..."""
        where = dict(zip(self.unpacked, unpacked, strict=True))
        for subset, parts in self._held_out().items():
            name = self.names[subset]
            members = {language: [p.file(language, self.languages) for p in parts] for language in self.languages}
            for number in range(1, parts[0].references):
                members[f"{self.languages[1]}{number}"] = [p.reference(number, self.languages) for p in parts]
            with self.job.trusting(*(part.source for part in parts)):
                for suffix, files in members.items():
                    texts = (sentences(where[p.source] / f, p.markup) for p, f in zip(parts, files, strict=True))
                    clean.write(zip(itertools.chain.from_iterable(texts)), [folder / f"{name}.{suffix}"])
                    check_lines(folder / f"{name}.{suffix}", name, self.expected)
                clean.check_parallel([folder / f"{name}.{suffix}" for suffix in members])

    def treat(self, folder: Path, raw: Path, *unpacked: Path) -> None:
        """Treat every line so that its words are told apart."""
        where = dict(zip(self.unpacked, unpacked, strict=True))
        train = self._paths(folder, "train")
        chains = [Chain(self.recipe.treat_train(language)) for language in self.languages]
        with train[0].open("wb") as source, train[1].open("wb") as target:
            for part in self.recipe.train:
                counts = []
                for language, chain, out in zip(self.languages, chains, (source, target), strict=True):
                    file = where[part.source] / part.file(language, self.languages)
                    if part.markup != "plain":
                        clean.write(zip(sentences(file, part.markup)), [folder / "unmarked"])
                        file = folder / "unmarked"
                    counts.append(self._treat(chain, file, out, Path(part.file(language, self.languages)).name))
                with self.job.trusting(part.source):
                    if counts[0] != counts[1]:
                        told = f"{counts[0]:,} lines in {self.languages[0]} and {counts[1]:,} in {self.languages[1]}"
                        raise UserError(f"{part.path} has {told}: the two sides do not belong together")
        (folder / "unmarked").unlink(missing_ok=True)
        with self.job.trusting(*(part.source for part in self.recipe.train)):
            check_lines(train[0], "train", self.expected)
        for subset in self._held_out():
            for language, path in zip(self.languages, self._paths(folder, subset), strict=True):
                with path.open("wb") as out:
                    chain = Chain(self.recipe.treat_held_out(language))
                    self._treat(chain, raw / f"{self.names[subset]}.{language}", out, path.name)

    def _treat(self, chain: Chain, file: Path, out: IO[bytes], label: str) -> int:
        result = map_lines(chain, [file], out, self.job.workers, label)
        if result.malformed:
            print(f"prepare: {label}: {result.malformed:,} lines are not UTF-8", file=sys.stderr)
        return result.lines

    def clean(self, folder: Path, tokenized: Path) -> None:
        """Drop training pairs outside the limits, and take the validation data out of them."""
        train = self._paths(tokenized, "train")
        if self.recipe.limits is not None:
            cleaned = self._paths(folder, "train")
            clean.clean(train, cleaned, self.recipe.limits)
            train = cleaned
        if isinstance(self.recipe.valid, int):
            whole = [path.replace(folder / f"whole.{path.name}") if path.parent == folder else path for path in train]
            clean.split(whole, self._paths(folder, "train"), self._paths(folder, "valid"), self.recipe.valid)
            for path in folder.glob("whole.*"):
                path.unlink()
        self._link_rest(folder, tokenized)

    def _link_rest(self, folder: Path, earlier: Path) -> None:
        """Give what a step leaves as it is a second name: it has one place on disk."""
        for path in earlier.iterdir():
            if not path.name.startswith(".") and not (folder / path.name).exists():
                share(path, folder / path.name)

    def learn(self, folder: Path, cleaned: Path, *given: Path) -> None:
        recipe = self.recipe.bpe
        assert recipe is not None
        train = self._paths(cleaned, "train")
        merges = self.job.size("merges", recipe.merges)
        if recipe.codes is not None:
            (folder / "codes").write_bytes((given[0] / recipe.codes[1]).read_bytes())
        elif recipe.joint:
            bpe.learn(train, folder / "codes", merges, recipe.whole)
        else:
            for path, language in zip(train, self.languages, strict=True):
                bpe.learn([path], folder / f"codes.{language}", merges, recipe.whole)

    def encode(self, folder: Path, cleaned: Path, codes: Path) -> None:
        recipe = self.recipe.bpe
        assert recipe is not None
        for path in sorted(cleaned.iterdir()):
            if path.name.startswith("."):
                continue
            own = codes / f"codes{path.suffix}"
            encoder = bpe.Encode(own if own.is_file() else codes / "codes", recipe.whole)
            with (folder / path.name).open("wb") as out:
                map_lines(encoder, [path], out, self.job.workers, f"BPE {path.name}")

    def finish(self, folder: Path, encoded: Path) -> None:
        """Drop what is too long in subwords."""
        limits = self.recipe.limits_encoded
        if limits is not None:
            for split in ("train", "valid") if isinstance(self.recipe.valid, int) else ("train",):
                clean.clean(self._paths(encoded, split), self._paths(folder, split), limits)
        self._link_rest(folder, encoded)

    def binarize(self, folder: Path, text: Path, *listed: Path) -> None:
        source, target = self.languages
        tests = ",".join(str(text / subset) for subset in subsets(self.recipe).values())
        flags = ["--source-lang", source, "--target-lang", target, *self.recipe.dictionary]
        flags += [f"--trainpref={text / 'train'}", f"--validpref={text / 'valid'}", f"--testpref={tests}"]
        if self.recipe.vocabulary is None:
            return binarize(folder, flags, self.job.workers)
        words = folder / "words"
        write_dictionary(list(lines_of(listed[0] / self.recipe.vocabulary[1])), words)
        binarize(folder, [*flags, f"--srcdict={words}"], self.job.workers)
        words.unlink()

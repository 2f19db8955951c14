"""The descriptions of Debian's packages, which volunteers have translated into many languages.

It is prose that people wrote to inform, on hundreds of mirrors. The corpus is defined for one point release, whose
files are pinned by their SHA-256; ``--release`` takes another, and the results say so. Examples are divided by source
package, and no sentence of the training data is in validation or test data; that, and what is done to the text, is in
:mod:`.debian_descriptions`. results/prepare/debian.md has counts and reasons.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from fairseq_residuals.lab.data import bpe, clean, sentence_pieces
from fairseq_residuals.lab.data.binarize import binarize
from fairseq_residuals.lab.data.corpora import debian_release
from fairseq_residuals.lab.data.corpora.debian_descriptions import PACKAGES, Descriptions, Example, split, translation
from fairseq_residuals.lab.data.corpora.debian_release import Release
from fairseq_residuals.lab.data.corpora.manuals import MANUALS, pages
from fairseq_residuals.lab.data.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.moses import Function, Tokenize
from fairseq_residuals.lab.data.parallel_map import map_lines
from fairseq_residuals.lab.data.parallel_text import Bpe, Parallel, Part, Pipeline
from fairseq_residuals.lab.data.sentence_pieces import Pair, Pieces
from fairseq_residuals.lab.data.steps import Step, share
from fairseq_residuals.wirings.core.errors import UserError

BOOKWORM = Release(
    "bookworm",
    "12.15",
    "Sat, 11 Jul 2026 10:16:37 UTC",
    {
        "binary-amd64/Packages.xz": "9e0b5aabb2465b3d2e7a7fe27f9913846277833f7a2826e7767acccff5b588c5",
        "i18n/Translation-da.bz2": "2e721d886e2830ab7dfd2c57142bbcbdcca936a17f06c8354cdbcb1bd38c479d",
        "i18n/Translation-de.bz2": "2cc65c7f8b85d8a2964c3735bbf86be79bfd3342ef8908150e268137fe5dac7f",
        "i18n/Translation-en.xz": "a3d4a0bfd8e9242810b0885eda7c1a6e05dac15b333ddbaab03ba56f2dfa4bf0",
        "i18n/Translation-fr.bz2": "3248f0206d704300067e35cc2d4380dc1f1b418b5b9f446c3d42424b98d0abad",
        "i18n/Translation-it.bz2": "f01a5f14992838ff8140da6e025c514c900c4f55d3169d5ef1710ed2deee2bde",
        "i18n/Translation-ko.bz2": "154cb892046314435ce8e427debe4fb7176f18a0f215ba188581b428e0c0a1e1",
        "i18n/Translation-pl.bz2": "99eef280a61a345b59c4958f9ecd680d157084b165d62392a30d94eca3bae86a",
        "i18n/Translation-pt_BR.bz2": "5b4b88bc3b09834b5579688c2e98bc14fb9005950c6e428001f47a010828b465",
        "i18n/Translation-sk.bz2": "b02acd2e6e41f25dd108507cdf9f5411b8dfe7ce5bd67c7bbe46358bc5b86ae2",
        "i18n/Translation-uk.bz2": "38cae54127841ee549148a76d84db30ce134590bee0622acdf778ebd4eab00d7",
    },
    {
        "binary-amd64/Packages.xz": 8_790_396,
        "i18n/Translation-da.bz2": 5_319_224,
        "i18n/Translation-de.bz2": 1_748_338,
        "i18n/Translation-en.xz": 6_107_304,
        "i18n/Translation-fr.bz2": 2_728_394,
        "i18n/Translation-it.bz2": 5_291_861,
        "i18n/Translation-ko.bz2": 610_427,
        "i18n/Translation-pl.bz2": 487_102,
        "i18n/Translation-pt_BR.bz2": 921_112,
        "i18n/Translation-sk.bz2": 1_227_798,
        "i18n/Translation-uk.bz2": 539_508,
    },
)
HELD_OUT = 2000
"""Examples of a validation or test set, at least; of all languages together four times as many."""
MERGES = 8000
PIECES = Pieces("bpe", 16000)
LANGUAGES = ("da", "de", "fr", "it", "ko", "pl", "pt_BR", "sk", "uk")
"""Languages with 10,000 pairs or more; Russian has 9,402. Of Japanese, words cannot be counted by blanks."""
SETS = ("train", "valid", "test")

Examples = Callable[[Descriptions], Iterable[Example]]


class Extraction:
    """The steps from a mirror to examples in three data sets."""

    def __init__(self, job: Job, *languages: str) -> None:
        self.job = job
        self.files = (PACKAGES, translation("en"), *map(translation, languages))
        self.release = self._release()
        self.checked = Step("work/release", self._check, {"release": str(self.release), "files": self.release.files})

    def step(self, examples: Examples, size: int, store: Callable[[Path, str, list[Example]], None]) -> Step:
        """Return the step that stores the examples of each data set by ``store(folder, data set, examples)``."""
        held_out = self.job.size("held_out", size)

        def make(folder: Path, release: Path) -> None:
            sources = [self.release.source(name) for name in self.files]
            paths = dict(zip(self.files, map(self.job.downloads.fetch, sources), strict=True))
            with self.job.trusting(*sources):
                lacking = f"Debian {self.release.version} has too few descriptions"
                divide(examples(Descriptions(paths.__getitem__)), held_out, partial(store, folder), lacking)

        return Step("work/examples", make, {"files": self.files, "held_out": held_out}, (self.checked,))

    def _release(self) -> Release:
        if self.job.release is None and self.job.stand_in is None:
            return BOOKWORM
        return self._offered(self.job.release or BOOKWORM.codename)

    def _offered(self, codename: str) -> Release:
        listed = debian_release.in_release(codename)
        path = self.job.downloads.fetch(listed)
        with self.job.trusting(listed):
            verified = None
            if self.job.stand_in is None:
                sentence, verified = debian_release.check_signature(path)
                print(f"prepare: {sentence}", file=sys.stderr, flush=True)
            return debian_release.read_release(path, codename, verified)

    def _check(self, folder: Path) -> None:
        offered = self._offered(self.release.codename)
        if wrong := debian_release.difference(self.release, offered, self.files):
            self.job.downloads.forget(debian_release.in_release(self.release.codename))
            raise UserError(wrong)


def divide(
    examples: Iterable[Example], held_out: int, store: Callable[[str, list[Example]], None], lacking: str
) -> None:
    """Store the examples of each data set.

    Raises:
        UserError: a data set is empty; ``lacking`` says of what there is too little.
    """
    for name, chosen in split(list(examples), held_out).items():
        if not chosen:
            raise UserError(f"{lacking}: {name} is empty")
        store(name, chosen)


def tokenized(language: str) -> tuple[Function, ...]:
    """Take words and punctuation apart; case stays."""
    return (Tokenize("en" if language in ("src", "tgt") else language),)


def write(texts: Iterable[tuple[str, ...]], folder: Path, name: str, suffixes: Iterable[str]) -> None:
    clean.write(texts, [folder / f"{name}.{suffix}" for suffix in suffixes])


def parallel(languages: tuple[str, str]) -> tuple[Source, Parallel]:
    """Return the recipe for examples of two texts, and the source that stands for them."""
    source = Source("examples")
    train, valid, test = ((Part(source, f"{name}.{{lang}}"),) for name in SETS)
    return source, Parallel(languages, train, {"test": test}, valid, tokenized, tokenized, bpe=Bpe(MERGES))


def translate_to(language: str) -> Variant:
    """Return the variant from English to one language."""
    languages = ("en", language)
    source, recipe = parallel(languages)

    def plan(job: Job) -> tuple[Step, ...]:
        def store(folder: Path, name: str, chosen: list[Example]) -> None:
            write((example.texts for example in chosen), folder, name, languages)

        extraction = Extraction(job, language)
        step = extraction.step(lambda said: said.translated(language), HELD_OUT, store)
        return Pipeline(recipe, job, {source: step}).results()

    return Variant(plan, sources(language), f"English to {language}", {"test": "test"})


def headlines(job: Job) -> tuple[Step, ...]:
    source, recipe = parallel(("src", "tgt"))

    def store(folder: Path, name: str, chosen: list[Example]) -> None:
        write((example.texts for example in chosen), folder, name, ("src", "tgt"))
        write(((example.note,) for example in chosen), folder, name, ("names",))

    step = Extraction(job).step(Descriptions.headlines, HELD_OUT, store)
    names = Step("names", lambda folder, made: share(made / "test.names", folder / "test"), {}, (step,))
    return (names, *Pipeline(recipe, job, {source: step}).results())


def language_model(job: Job) -> tuple[Step, ...]:
    return text_model(job, Extraction(job).step(Descriptions.text, HELD_OUT, store_text))


def manuals(job: Job) -> tuple[Step, ...]:
    """Plan the same of manuals: a blank line after each page."""
    if job.release:
        raise UserError("--release: the manuals are those of Debian 12.15, whatever the release; leave it out")
    held_out = job.size("held_out", HELD_OUT)

    def make(folder: Path) -> None:
        sources = [manual.source for manual in MANUALS]
        archives = list(map(job.downloads.fetch, sources))
        with job.trusting(*sources):
            found = (one for manual, archive in zip(MANUALS, archives, strict=True) for one in pages(manual, archive))
            divide(found, held_out, partial(store_text, folder), "the manuals have too few pages")

    described = {"manuals": [(manual.source.name, manual.pages) for manual in MANUALS], "held_out": held_out}
    return text_model(job, Step("work/examples", make, described))


def store_text(folder: Path, name: str, chosen: list[Example]) -> None:
    """Write a paragraph a line, and a blank line after each group."""
    groups = (group for _, group in groupby(chosen, key=attrgetter("group")))
    clean.write(((line,) for group in groups for line in (*_texts(group), "")), [folder / name])


def text_model(job: Job, examples: Step) -> tuple[Step, ...]:
    """Plan what comes after the text of three data sets: subwords as for translation, and data for fairseq."""

    def tokenize(folder: Path, made: Path) -> None:
        _map(Tokenize("en"), made, folder)

    def learn(folder: Path, words: Path) -> None:
        bpe.learn([words / "train"], folder / "codes", merges, (), job.workers)

    def encode(folder: Path, words: Path, codes: Path) -> None:
        _map(bpe.Encode(codes / "codes"), words, folder)

    def make(folder: Path, text: Path) -> None:
        binarize(folder, ["--only-source", *(f"--{name}pref={text / name}" for name in SETS)], job.workers)

    def _map(function: Function, inputs: Path, folder: Path) -> None:
        for name in SETS:
            with (folder / name).open("wb") as out:
                map_lines(function, [inputs / name], out, job.workers, name)

    merges = job.size("merges", MERGES)
    words = Step("work/tokenized", tokenize, {}, (examples,))
    codes = Step("codes", learn, {"merges": merges}, (words,))
    text = Step("text", encode, {}, (words, codes))
    return (codes, text, Step("data-bin", make, {"flags": ["--only-source"]}, (text,)))


def _texts(examples: Iterable[Example]) -> Iterator[str]:
    for example in examples:
        yield from example.texts


def many_languages(job: Job) -> tuple[Step, ...]:
    """Plan one model from English to all of :data:`LANGUAGES`; a package is in the same data set in all of them."""

    def everything(said: Descriptions) -> Iterator[Example]:
        for language in LANGUAGES:
            for example in said.translated(language):
                yield example._replace(key=f"{language} {example.key}", note=language)

    def store(folder: Path, name: str, chosen: list[Example]) -> None:
        for language in LANGUAGES:
            pair = folder / f"en-{language}"
            pair.mkdir(exist_ok=True)
            texts = (example.texts for example in chosen if example.note == language)
            write(texts, pair, "dev" if name == "valid" else name, ("en", language))

    def pairs(folder: Path) -> Iterator[Pair]:
        return (Pair.of(folder / f"en-{language}", "{split}.{language}") for language in LANGUAGES)

    step = Extraction(job, *LANGUAGES).step(everything, 4 * HELD_OUT, store)
    return sentence_pieces.steps(job, step, pairs, PIECES, Source("examples"), both_directions=False)


def sources(*languages: str) -> tuple[Source, ...]:
    """Return what the pinned release has of these languages."""
    names = (PACKAGES, translation("en"), *map(translation, languages))
    return (debian_release.in_release(BOOKWORM.codename), *map(BOOKWORM.source, names))


DEBIAN = Corpus(
    "debian",
    {
        **{f"en_{language}": translate_to(language) for language in ("it", "da", "fr", "de", "sk")},
        "multilingual": Variant(
            many_languages, sources(*LANGUAGES), f"English to {', '.join(LANGUAGES)}", {"test": "test"}
        ),
        "headlines": Variant(headlines, sources(), "long descriptions to synopses", {"test": "test"}),
        "lm": Variant(language_model, sources(), "all English text", {"test": "test"}),
        "manuals": Variant(manuals, tuple(m.source for m in MANUALS), "manuals of 13 packages", {"test": "test"}),
    },
    mirrors=debian_release.apt_mirrors,
)

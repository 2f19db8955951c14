"""The descriptions of Debian's packages, which volunteers have translated into many languages.

It is prose that people wrote to inform, on hundreds of mirrors. The corpus is defined for one point release, whose
files are pinned by their SHA-256. Examples are divided by source package, and no sentence of the training data is in
validation or test data; that, and what is done to the text, is in :mod:`.debian_descriptions`.
results/prepare/debian.md has counts and reasons.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from fairseq_residuals.lab.data import bpe, clean
from fairseq_residuals.lab.data.binarize import binarize
from fairseq_residuals.lab.data.corpora.debian_descriptions import PACKAGES, Descriptions, Example, split
from fairseq_residuals.lab.data.corpora.manuals import MANUALS, TERMS, pages
from fairseq_residuals.lab.data.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.moses import Function, Tokenize
from fairseq_residuals.lab.data.parallel_map import map_lines
from fairseq_residuals.lab.data.parallel_text import Bpe, Parallel, Part, Pipeline
from fairseq_residuals.lab.data.steps import Step


def _file(name: str, sha256: str) -> Source:
    return Source(f"dists/bookworm/main/{name}", digest=f"sha256:{sha256}", terms=TERMS)


FILES = {
    PACKAGES: _file(f"{PACKAGES}.xz", "9e0b5aabb2465b3d2e7a7fe27f9913846277833f7a2826e7767acccff5b588c5"),
    **{
        language: _file(f"i18n/Translation-{language}.{'xz' if language == 'en' else 'bz2'}", sha256)
        for language, sha256 in (
            ("en", "a3d4a0bfd8e9242810b0885eda7c1a6e05dac15b333ddbaab03ba56f2dfa4bf0"),
            ("da", "2e721d886e2830ab7dfd2c57142bbcbdcca936a17f06c8354cdbcb1bd38c479d"),
            ("de", "2cc65c7f8b85d8a2964c3735bbf86be79bfd3342ef8908150e268137fe5dac7f"),
            ("fr", "3248f0206d704300067e35cc2d4380dc1f1b418b5b9f446c3d42424b98d0abad"),
            ("it", "f01a5f14992838ff8140da6e025c514c900c4f55d3169d5ef1710ed2deee2bde"),
            ("sk", "b02acd2e6e41f25dd108507cdf9f5411b8dfe7ce5bd67c7bbe46358bc5b86ae2"),
        )
    },
}
"""Files of Debian 12.15 (bookworm): the packages, and the descriptions by language."""
HELD_OUT = 2000
"""Examples of a validation or test set, at least."""
MERGES = 8000
SETS = ("train", "valid", "test")

Examples = Callable[[Descriptions], Iterable[Example]]


def apt_mirrors() -> tuple[str, ...]:
    """Return the addresses that this machine's apt takes packages from; none where there is no apt."""
    if shutil.which("apt-get") is None:
        return ()
    # without the second option apt names only what it has fetched already, which on a fresh machine is nothing
    form = ["--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    command = ["apt-get", "indextargets", "--no-release-info", *form]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        print(f"prepare: apt-get names no mirror: {answer.stderr.strip()}", file=sys.stderr, flush=True)
        return ()
    repositories = (line.split() for line in answer.stdout.splitlines())
    addresses = (words[0].rstrip("/") for words in repositories if "security" not in words[-1])
    return tuple(dict.fromkeys(a for a in addresses if a.startswith(("http://", "https://"))))


def described(job: Job, examples: Examples, store: Callable[[Path, str, list[Example]], None], *languages: str) -> Step:
    """Return the step that stores the examples of each data set by ``store(folder, data set, examples)``."""
    held_out = job.size("held_out", HELD_OUT)
    files = {name: FILES[name] for name in (PACKAGES, "en", *languages)}

    def make(folder: Path) -> None:
        paths = {name: job.downloads.fetch(source) for name, source in files.items()}
        for name, chosen in split(examples(Descriptions(paths)), held_out).items():
            store(folder, name, chosen)

    digests = {source.name: source.digest for source in files.values()}
    return Step("work/examples", make, {"files": digests, "held_out": held_out})


def tokenized(language: str) -> tuple[Function, ...]:
    """Take words and punctuation apart; case stays."""
    return (Tokenize("en" if language in ("src", "tgt") else language),)


def parallel(languages: tuple[str, str], examples: Examples, summary: str, *translated: str) -> Variant:
    """Return the variant of examples of two texts; ``translated`` are the languages whose descriptions they need."""
    source = Source("examples")
    train, valid, test = ((Part(source, f"{name}.{{lang}}"),) for name in SETS)
    recipe = Parallel(languages, train, {"test": test}, valid, tokenized, tokenized, bpe=Bpe(MERGES))

    def store(folder: Path, name: str, chosen: list[Example]) -> None:
        clean.write((example.texts for example in chosen), [folder / f"{name}.{suffix}" for suffix in languages])

    def plan(job: Job) -> tuple[Step, ...]:
        step = described(job, examples, store, *translated)
        return Pipeline(recipe, job, {source: step}).results()

    return Variant(plan, sources(*translated), summary, {"test": "test"})


def translate_to(language: str) -> Variant:
    """Return the variant from English to one language."""
    return parallel(("en", language), lambda said: said.translated(language), f"English to {language}", language)


def language_model(job: Job) -> tuple[Step, ...]:
    return text_model(job, described(job, Descriptions.text, store_text))


def manuals(job: Job) -> tuple[Step, ...]:
    """Plan the same of manuals: a blank line after each page."""
    held_out = job.size("held_out", HELD_OUT)

    def make(folder: Path) -> None:
        found = (one for manual in MANUALS for one in pages(manual, job.downloads.fetch(manual.source)))
        for name, chosen in split(found, held_out).items():
            store_text(folder, name, chosen)

    parameters = {"manuals": [(manual.source.name, manual.pages) for manual in MANUALS], "held_out": held_out}
    return text_model(job, Step("work/examples", make, parameters))


def store_text(folder: Path, name: str, chosen: list[Example]) -> None:
    """Write a paragraph a line, and a blank line after each group."""
    groups = (group for _, group in groupby(chosen, key=attrgetter("group")))
    clean.write((texts for group in groups for texts in (*(one.texts for one in group), ("",))), [folder / name])


def text_model(job: Job, examples: Step) -> tuple[Step, ...]:
    """Plan what comes after the text of three data sets: subwords as for translation, and data for fairseq."""

    def tokenize(folder: Path, made: Path) -> None:
        _map(Tokenize("en"), made, folder)

    def learn(folder: Path, words: Path) -> None:
        bpe.learn([words / "train"], folder / "codes", merges, ())

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


def sources(*languages: str) -> tuple[Source, ...]:
    return tuple(FILES[name] for name in (PACKAGES, "en", *languages))


DEBIAN = Corpus(
    "debian",
    {
        **{f"en_{language}": translate_to(language) for language in ("it", "da", "fr", "de", "sk")},
        "headlines": parallel(("src", "tgt"), Descriptions.headlines, "long descriptions to synopses"),
        "lm": Variant(language_model, sources(), "all English text", {"test": "test"}),
        "manuals": Variant(manuals, tuple(m.source for m in MANUALS), "manuals of 13 packages", {"test": "test"}),
    },
    mirrors=apt_mirrors,
)

"""What wirings are compared on: small tasks that are made on the spot, corpora, and any binarized folder."""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairseq.data import Dictionary, data_utils

from fairseq_residuals.lab.data.corpora import cldr_en_de
from fairseq_residuals.lab.data.pipeline import corpus
from fairseq_residuals.lab.data.pipeline.binarize import binarize
from fairseq_residuals.lab.data.pipeline.download import Downloads
from fairseq_residuals.lab.data.pipeline.file_digests import digest_of
from fairseq_residuals.lab.recipes.losses import unigram_loss
from fairseq_residuals.plugin.folders import locked, new_folder
from fairseq_residuals.wirings.core.errors import UserError


@dataclass(frozen=True)
class Rung:
    """One size of models, and on text that people wrote, how long they train."""

    dim: int
    ffn: int
    heads: int
    updates: int
    tokens: int
    """Target tokens of an update."""


RUNGS = {
    "xs": Rung(64, 128, 4, 1000, 2048),
    "s": Rung(128, 512, 4, 3000, 4096),
    "d256": Rung(256, 1024, 4, 3000, 4096),
    "d512": Rung(512, 2048, 8, 3000, 262_144),
    "d768": Rung(768, 3072, 12, 6500, 262_144),
}


@dataclass(frozen=True)
class Task:
    """One task: its configuration under ``configs/compare``, and where its data come from."""

    name: str
    about: str
    config: str
    size: str
    depth: int
    lr: float
    """Rate in the middle of the first three."""
    make: Callable[[Path, int | None], Path] | None = None
    """Makes the data under a folder, of so many training examples, and returns what ``Settings.data`` names."""
    updates: int | None = None
    """Updates where the size does not say; likewise ``tokens``."""
    tokens: int | None = None
    overrides: tuple[str, ...] = ()

    @property
    def is_language_model(self) -> bool:
        return self.config == "compare/language_model"


COPY_WORDS = "abcdefghijklmnopqrst"
COPY_PAIRS = {"train": 6000, "valid": 200, "test": 200}


def make_copy(out: Path, pairs: int | None) -> Path:
    """Binarize sentences of 4 to 10 words, ``a`` the most frequent, whose translations are their copies."""
    data = out / f"data-copy-{pairs or COPY_PAIRS['train']}"
    folder = data / "copy"
    with locked(out, ".copy.lock", wait=True):
        if not folder.exists():
            with new_folder(folder) as partial:
                words = random.Random(1)
                for split, number in (COPY_PAIRS | ({"train": pairs} if pairs else {})).items():
                    lines = "".join(f"{_sentence(words)}\n" for _ in range(number))
                    for side in ("src", "tgt"):
                        (partial / f"{split}.{side}").write_text(lines, encoding="utf-8")
                prefixes = [flag for split in COPY_PAIRS for flag in (f"--{split}pref", partial / split)]
                flags = ["--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary", *prefixes]
                binarize(partial / "data-bin", flags, workers=1)
    return data


def _sentence(words: random.Random) -> str:
    return " ".join(COPY_WORDS[int(len(COPY_WORDS) * words.random() ** 2)] for _ in range(words.randint(4, 10)))


def make_cldr(out: Path, pairs: int | None) -> Path:
    """Make English-German sentences from CLDR, in subwords, not tokenized."""
    count = pairs or 30_000
    held_out = max(2, min(1000, count // 10))
    data = out / f"data-cldr-{count}"
    variant = cldr_en_de.made(cldr_en_de.PLAIN, count, held_out, merges=1000, summary=f"{count:,} pairs")
    logging.getLogger("fairseq_cli.preprocess").setLevel(logging.WARNING)
    with locked(out, ".cldr.lock", wait=True):
        job = corpus.Job(data / "cldr_en_de/plain", Downloads(data / "downloads"), workers=1)
        corpus.prepare(corpus.Corpus("cldr_en_de", {"plain": variant}), None, job)
    return data


TASKS = {
    task.name: task
    for task in (
        Task("copy", "copy short sentences of 20 words", "compare/copy", "xs", 2, 2e-3, make_copy, 300, 400),
        Task(
            "cldr", "English to German: dates, prices, countries", "compare/cldr", "xs", 18, 1e-3, make_cldr, 800, 1500
        ),
        Task("debian_en_it", "English to Italian: descriptions of packages", "compare/translation", "s", 6, 1e-3),
        Task("debian_lm", "English descriptions of packages, language model", "compare/language_model", "s", 12, 1e-3),
    )
}


def folder_task(folder: Path) -> Task:
    """Return the task of a folder that ``fairseq-preprocess`` has made: translation, or a language model.

    Raises:
        UserError: it is no such folder.
    """
    if (folder / "dict.txt").is_file() and (folder / "train.idx").is_file():
        return Task(folder.name, f"language model on {folder.name}", "compare/language_model", "s", 12, 1e-3)
    languages = {path.suffixes[0][1:] for path in folder.glob("train.*-*.*.idx")}
    if len(languages) != 1:
        raise UserError(
            f"--data {folder} is no binarized folder: fairseq-preprocess writes dict.txt and train.idx for a language"
            " model, and train.SOURCE-TARGET.SOURCE.idx for translation"
        )
    source, _, target = languages.pop().partition("-")
    own = (f"task.source_lang={source}", f"task.target_lang={target}")
    about = f"{source} to {target} of {folder.name}"
    return Task(folder.name, about, "compare/translation", "s", 6, 1e-3, overrides=own)


def link_folder(folder: Path, out: Path) -> Path:
    """Put a binarized folder where a corpus named ``folder`` has its own; return what ``Settings.data`` names."""
    data = out / f"data-{folder.name}-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]}"
    link = data / "folder" / "data-bin"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(folder.resolve(), target_is_directory=True)
    return data


def _predicted(data_bin: Path, split: str) -> str:
    """Return the name of the file of a split that a model learns to predict, without its ending."""
    for path in data_bin.glob(f"{split}.*-*.*.idx"):
        _, pair, language, _ = path.name.split(".")
        if pair.endswith(f"-{language}"):
            return path.stem
    return split


def unigram_loss_of(data_bin: Path) -> float:
    """Return the bits per token of validation data by a model that knows how frequent tokens are in training data.

    Every word of the dictionary counts once more, so that none is impossible.
    """
    names = [_predicted(data_bin, split) for split in ("train", "valid")]
    language = names[0].rpartition(".")[2] if "." in names[0] else ""
    words = len(Dictionary.load(str(data_bin / ".".join(filter(None, ("dict", language, "txt"))))))
    train, valid = (
        Counter(token for line in data_utils.load_indexed_dataset(str(data_bin / name)) for token in line.tolist())
        for name in names
    )
    return unigram_loss(train, valid, words)


def data_digest(data_bin: Path) -> str:
    """Return a short digest of what is trained and validated on."""
    digest = hashlib.sha256()
    for path in sorted(data_bin.iterdir()):
        if path.is_file() and path.name.startswith(("train", "valid", "dict")):
            digest.update(f"{path.name} {digest_of(path)}\n".encode())
    return digest.hexdigest()[:12]

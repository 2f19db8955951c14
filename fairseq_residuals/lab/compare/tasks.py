"""Tasks that wirings are compared on: small ones that are made on the spot, corpora, and any binarized folder."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from fairseq_residuals.lab.data.binarize import binarize
from fairseq_residuals.lab.data.download import digest_of
from fairseq_residuals.lab.look.diagnose import target_file, token_counts
from fairseq_residuals.plugin.folders import new_folder
from fairseq_residuals.wirings.core.errors import UserError


@dataclass(frozen=True)
class Rung:
    """One size of models, and on text that people wrote, how long they train."""

    dim: int
    ffn: int
    heads: int
    updates: int
    tokens: int
    """Most tokens of an update; those of the longer side, with the padding of sentences, count."""


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
    updates: int | None = None
    """Updates where the size does not say; likewise ``tokens``."""
    tokens: int | None = None
    warmup: int = 400
    """Updates of warm-up, or a sixth of all where that is less."""
    overrides: tuple[str, ...] = ()

    @property
    def is_language_model(self) -> bool:
        return self.config == "compare/language_model"


COPY_WORDS = "abcdefghijklmnopqrst"
COPY_PAIRS = {"train": 6000, "valid": 200, "test": 200}


def make_copy(data_bin: Path) -> None:
    """Binarize sentences of 4 to 10 words, ``a`` the most frequent, whose translations are their copies."""
    with new_folder(data_bin.parent) as partial:
        words = random.Random(1)
        for split, number in COPY_PAIRS.items():
            lines = "".join(f"{_sentence(words)}\n" for _ in range(number))
            for side in ("src", "tgt"):
                (partial / f"{split}.{side}").write_text(lines, encoding="utf-8")
        prefixes = [f"--{split}pref={partial / split}" for split in COPY_PAIRS]
        flags = ["--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary", *prefixes]
        binarize(partial / "data-bin", flags, workers=1)


def _sentence(words: random.Random) -> str:
    return " ".join(COPY_WORDS[int(len(COPY_WORDS) * words.random() ** 2)] for _ in range(words.randint(4, 10)))


TASKS = {
    task.name: task
    for task in (
        Task("copy", "copy short sentences of 20 words", "compare/copy", "xs", 2, 2e-3, 300, 400, 50),
        Task("cldr", "English to German: dates, prices, countries", "compare/cldr", "xs", 18, 1e-3, 800, 1500, 100),
        Task("debian_en_it", "English to Italian: descriptions of packages", "compare/translation", "s", 6, 1e-3),
        Task("debian_lm", "English descriptions of packages, language model", "compare/language_model", "s", 12, 1e-3),
        Task(
            "manuals_lm",
            "English manuals of programs, language model",
            "compare/language_model",
            "s",
            12,
            1e-3,
            overrides=("recipe.variant=manuals",),
        ),
    )
}


def folder_task(folder: Path) -> Task:
    """Return the task of a folder that ``fairseq-preprocess`` has made: translation, or a language model.

    Raises:
        UserError: it is no such folder.
    """
    languages = {path.suffixes[0][1:] for path in folder.glob("train.*-*.*.idx")}
    is_language_model = (folder / "dict.txt").is_file() and (folder / "train.idx").is_file()
    if not is_language_model and len(languages) != 1:
        raise UserError(
            f"--data {folder} is no binarized folder: fairseq-preprocess writes dict.txt and train.idx for a language"
            " model, and train.SOURCE-TARGET.SOURCE.idx for translation"
        )
    own: tuple[str, ...] = (f"recipe.corpus=folder-{data_digest(folder, 'test.')}", "recipe.variant=null")
    name = folder.resolve().name
    if is_language_model:
        return Task(name, f"language model on {name}", "compare/language_model", "s", 12, 1e-3, overrides=own)
    source, _, target = languages.pop().partition("-")
    own += (f"task.source_lang={source}", f"task.target_lang={target}", "recipe.evaluate.hypotheses=tokenized")
    own += ("recipe.evaluate.references=targets", "recipe.evaluate.flags.tokenizer=null")  # no raw text is there
    dictionaries = [(folder / f"dict.{language}.txt").read_text(encoding="utf-8") for language in (source, target)]
    if dictionaries[0] != dictionaries[1]:
        own += ("model.share_all_embeddings=false", "model.share_decoder_input_output_embed=true")
    if "\n\u2581" in f"\n{dictionaries[1]}":
        own += ("recipe.evaluate.flags.post_process=sentencepiece",)
    return Task(name, f"{source} to {target} of {name}", "compare/translation", "s", 6, 1e-3, overrides=own)


def check_test_set(data_bin: Path, flags: Mapping[str, Any]) -> None:
    """Check that every pair of the test set can be scored.

    Args:
        flags: of fairseq-generate, which has 1,024 positions by default.

    Raises:
        UserError: a sentence is too long, or a reference is empty.
    """
    target = target_file(data_bin, "test")
    for path in sorted(data_bin.glob("test.*-*.*.idx")):
        data = load_indexed_dataset(str(path.with_suffix("")))  # which closes its file once it is freed
        sizes = data.sizes.tolist()
        side = "target" if path.stem == target.name else "source"
        most = flags.get(f"max_{side}_positions", 1024)
        if max(sizes) > most:
            line = sizes.index(max(sizes)) + 1
            raise UserError(f"--score: line {line} of {path} has {max(sizes)} tokens; fairseq-generate takes {most}")
        if side == "target" and min(sizes) == 1:  # the end of the line
            raise UserError(f"--score: line {sizes.index(1) + 1} of {path} is empty, and BLEU needs words there")


def unigram_loss_of(data_bin: Path, target: str = "") -> float:
    """Return the bits per token of validation data by a model that knows how frequent tokens are in training data.

    Every word of the dictionary counts once more, so that none is impossible.

    Args:
        target: as for :func:`.target_file`.
    """
    files = [target_file(data_bin, split, target) for split in ("train", "valid")]
    words = len(Dictionary.load(str(data_bin / f"dict{files[0].suffix}.txt")))
    train, valid = map(token_counts, files)
    total = train.total() + words
    return -math.fsum(n * math.log2((train[token] + 1) / total) for token, n in valid.items()) / valid.total()


def data_digest(data_bin: Path, *splits: str) -> str:
    """Return a short digest of what is trained and validated on, and of further splits."""
    digest = hashlib.sha256()
    for path in sorted(data_bin.iterdir()):
        if path.is_file() and path.name.startswith(("train", "valid", "dict", *splits)):
            digest.update(f"{path.name} {digest_of(path)}\n".encode())
    return digest.hexdigest()[:12]

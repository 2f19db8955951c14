"""The three tasks at a size that trains in a second: what to preprocess, and which flags to train with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_data
from running import PLUGIN, succeed

SPECIAL_SYMBOLS = 4
"""Beginning, padding, end, unknown: the first of every dictionary of fairseq."""
CUTOFFS = (5, 9)
"""Where the tails of the adaptive softmax begin."""
UPDATES = 24
SAVE_EVERY = 6
ADAM = ("--optimizer", "adam", "--lr", "0.005", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4")
NEVER_BETTER = ("--best-checkpoint-metric", "num_updates")
"""A validation metric that grows, where less is better."""


@dataclass(frozen=True)
class Job:
    """One task with a model of a few thousand parameters."""

    name: str
    task: tuple[str, ...]
    arch: str
    model: tuple[str, ...]
    criterion: tuple[str, ...]
    prepare: Callable[[Path], None]
    """Fills an empty folder with data that fairseq-train can read."""
    optimizer: tuple[str, ...] = ADAM

    def train_flags(self, data: Path, save_dir: Path) -> list[str]:
        """All but how to optimise, how long, when to save. Dropout is on: a resumed run has to repeat it."""
        flags = [data, "--user-dir", PLUGIN, *self.task, "--arch", self.arch, *self.model, *self.criterion]
        flags += ["--save-dir", save_dir, "--cpu", "--seed", 7, "--num-workers", 0, "--batch-size", 4]
        flags += ["--required-batch-size-multiple", 1, "--log-format", "json", "--log-interval", 1]
        return [str(flag) for flag in flags]

    def long_run(self, data: Path, save_dir: Path) -> list[str]:
        """Several epochs, saved at their ends and in the middle of some."""
        lengths = ("--max-update", str(UPDATES), "--save-interval-updates", str(SAVE_EVERY))
        return [*self.train_flags(data, save_dir), *self.optimizer, *lengths]

    def use_flags(self, data: Path, checkpoint: Path, batch_size: int | None = 4) -> list[str]:
        """For the commands that load a checkpoint; fairseq-interactive batches by itself (None)."""
        flags = [data, "--user-dir", PLUGIN, *self.task, "--path", checkpoint, "--cpu", "--num-workers", 0]
        return [str(flag) for flag in flags + (["--batch-size", batch_size] if batch_size else [])]


def without_plugin(flags: list[str]) -> list[str]:
    """The same flags for fairseq alone."""
    at = flags.index("--user-dir")
    return flags[:at] + flags[at + 2 :]


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Keys of a YAML file as flags."""
    flags = []
    for key, value in settings.items():
        flags += [f"--{key.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return flags


STACK = {"layers": 2, "embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2}
"""Dimensions of an encoder or decoder."""
ENCODER = {f"encoder_{key}": value for key, value in STACK.items()}
DECODER = {f"decoder_{key}": value for key, value in STACK.items()}


def _preprocess(folder: Path, *flags: str) -> None:
    prefixes = [x for split in tiny_data.SIZES for x in (f"--{split}pref", folder / "text" / split)]
    succeed("fairseq-preprocess", *prefixes, "--destdir", folder, *flags)


def prepare_translation(folder: Path) -> None:
    (folder / "text").mkdir()
    tiny_data.write_parallel_text(folder / "text")
    _preprocess(folder, "--source-lang", "s", "--target-lang", "t", "--joined-dictionary")


def prepare_text(folder: Path) -> None:
    """With two worker processes, which import fairseq on their own.

    The dictionary is given. The second word of each tail of the adaptive softmax never occurs: fairseq's
    adaptive_loss takes it for padding (its index in the tail is 1) and leaves it out.
    """
    (folder / "text").mkdir()
    tiny_data.write_text(folder / "text")
    words = list(tiny_data.WORDS)
    for cutoff in CUTOFFS:
        words.insert(cutoff + 1 - SPECIAL_SYMBOLS, f"never{cutoff}")
    (folder / "words").write_text("".join(f"{word} 1\n" for word in words))
    _preprocess(folder, "--only-source", "--workers", "2", "--srcdict", str(folder / "words"))


TRANSLATION = Job(
    name="translation",
    task=("--task", "translation", "--source-lang", "s", "--target-lang", "t"),
    arch="transformer_b2t_6l",
    model=(*as_flags(ENCODER | DECODER), "--share-all-embeddings", "--dropout", "0.1"),
    criterion=("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
    prepare=prepare_translation,
)
LANGUAGE_MODEL = Job(
    name="language_model",
    task=("--task", "language_modeling", "--sample-break-mode", "none", "--tokens-per-sample", "12"),
    arch="transformer_lm_post_ln_6l",
    model=(*as_flags(DECODER), "--share-decoder-input-output-embed", "--dropout", "0.1"),
    criterion=("--criterion", "cross_entropy"),
    prepare=prepare_text,
)
SPEECH = Job(
    name="speech",
    task=("--task", "speech_to_text", "--config-yaml", "config.yaml"),
    arch="s2t_transformer_b2t_xs",
    model=(*as_flags(ENCODER | DECODER), "--conv-channels", "16", "--dropout", "0.1"),
    criterion=("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
    prepare=tiny_data.write_waves,
)
JOBS = (TRANSLATION, LANGUAGE_MODEL, SPEECH)

_cutoffs = ",".join(map(str, CUTOFFS))
ADAPTIVE = (
    *("--adaptive-input", "--adaptive-input-cutoff", _cutoffs, "--adaptive-input-factor", "2"),
    *(
        "--adaptive-softmax-cutoff",
        _cutoffs,
        "--adaptive-softmax-factor",
        "2",
        "--adaptive-softmax-dropout",
        "0.1",
    ),
    *("--tie-adaptive-weights", "--tie-adaptive-proj"),
)
WIKI103 = Job(
    name="wiki103",
    task=LANGUAGE_MODEL.task,
    arch="transformer_lm_b2t_wiki103",
    model=(
        *as_flags(DECODER),
        "--decoder-input-dim",
        "16",
        "--decoder-output-dim",
        "16",
        *ADAPTIVE,
        "--dropout",
        "0.1",
    ),
    criterion=("--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp"),
    prepare=prepare_text,
    optimizer=(
        *("--optimizer", "nag", "--clip-norm", "0.1", "--lr", "1.0", "--lr-scheduler", "cosine", "--min-lr", "0.1"),
        *("--warmup-updates", "4", "--warmup-init-lr", "0.01", "--lr-period-updates", "8", "--t-mult", "2"),
        *("--lr-shrink", "0.75"),
    ),
)
"""The language model of the WikiText-103 recipes, and how they train it; fairseq's adaptive loss refuses any other
--ddp-backend."""

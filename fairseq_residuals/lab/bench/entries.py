"""Subjects of the benchmark: the work (a case), and the models that do it (entries)."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fairseq_residuals.wirings.core.errors import UserError

DIMENSIONS = {"base": (512, 2048, 8), "big": (1024, 4096, 16)}
"""Model dimension, width of the FFNs, heads: the two sizes of Vaswani et al. 2017, table 3."""
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Case:
    """One line of work. Source and target have ``sentences`` sequences of ``tokens`` tokens each, without padding."""

    layers: str
    """Layers of each stack, or 12-6 for encoder and decoder."""
    dim: int
    ffn_dim: int
    heads: int
    vocabulary: int
    """Words, shared by both sides, whose embeddings are also the output's."""
    sentences: int
    tokens: int
    precision: str
    """fp32, bf16 or fp16."""
    device: str
    warmup: int
    """Steps that are not timed, of each process."""
    steps: int
    """Timed steps of each process."""
    seed: int
    beam: int = 1

    @property
    def depths(self) -> tuple[int, int]:
        """Layers of the encoder and of the decoder."""
        encoder, _, decoder = self.layers.partition("-")
        return int(encoder), int(decoder or encoder)

    @property
    def target_tokens(self) -> int:
        """Target tokens of one step."""
        return self.sentences * self.tokens

    @property
    def dimensions(self) -> str:
        """Sizes as ``--dims`` takes them."""
        own = (self.dim, self.ffn_dim, self.heads)
        return next((name for name, sizes in DIMENSIONS.items() if sizes == own), "x".join(map(str, own)))

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.dimensions}, {self.precision}"


def cases(args: Any) -> list[Case]:
    """Return every combination of ``--dims``, ``--precision`` and ``--layers``.

    Raises:
        UserError: a size is none.
    """
    for flag, least in {"vocabulary": 5, "warmup": 1, "steps": 1, "repeats": 1, "beam": 1, "timeout": 1}.items():
        if getattr(args, flag) < least:
            raise UserError(f"--{flag} must be at least {least}, not {getattr(args, flag)}")
    if wrong := next((text for text in args.layers if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)?", text)), None):
        raise UserError(f"--layers must be numbers such as 18, or 12-6 for encoder and decoder, not {wrong}")
    sentences, tokens = _numbers("--tokens", args.tokens, 2, "64x32, sentences x tokens")
    return [
        Case(layers, *sizes, args.vocabulary, sentences, tokens, precision, args.device, args.warmup, args.steps,
             args.seed, args.beam)
        for sizes, precision, layers in itertools.product(
            [_sizes(text) for text in args.dims], args.precision, args.layers
        )
    ]  # fmt: skip


def _sizes(text: str) -> tuple[int, int, int]:
    if text in DIMENSIONS:
        return DIMENSIONS[text]
    dim, ffn_dim, heads = _numbers("--dims", text, 3, "base, big, or 512x2048x8, dimension x FFN's width x heads")
    if dim % (2 * heads):
        raise UserError(f"--dims {text}: the dimension {dim} has to be even, and a multiple of the {heads} heads")
    return dim, ffn_dim, heads


def _numbers(flag: str, text: str, count: int, example: str) -> list[int]:
    if not re.fullmatch("x".join([r"0*[1-9]\d*"] * count), text):
        raise UserError(f"{flag} {text} is not understood; valid is such as {example}")
    return [int(number) for number in text.split("x")]


@dataclass(frozen=True)
class Entry:
    """One line of a table."""

    name: str
    """Name of a model, or of a wiring with its options, by which its process finds it too."""
    network: Callable[[Entry, Case], Any]
    """Maker of a :class:`.fairseq_models.Network`, or of a stack."""
    search: Callable[[Entry, Case], Callable[[], int]] | None = None
    """Maker of a function that generates once and returns how many tokens."""
    arch: str = "transformer"
    flags: tuple[str, ...] = ()
    """Flags of fairseq-train, after those that a case makes: the last one wins."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its process has beside this one's."""
    about: str = ""
    """A note for readers of a table: what its name does not say."""
    label: str = ""
    """Name in the table, where a user gave it another."""
    files: tuple[Path, ...] = ()
    """Files of Python that its process executes first."""

    def __str__(self) -> str:
        return self.label or self.name

    @property
    def own(self) -> str:
        """Its variables and flags, as a command line."""
        return shlex.join([*(f"{name}={value}" for name, value in self.environment.items()), *self.flags])


def chosen(args: Any, parse: Callable[[str], Entry]) -> list[Entry]:
    """Return what ``--beside``, ``--wirings`` and ``--also`` ask for, each name once.

    Args:
        parse: returns the entry that a name stands for.

    Raises:
        UserError: one of them is unknown, or two have one name.
    """
    entries = [parse(text) for text in (*args.beside, *args.variants)]
    entries += [parse_also(text, parse) for text in args.also]
    names = [str(entry) for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{twice!r} is asked for twice; `--also 'LABEL={twice} ...'` gives it another name")
    if not entries:
        raise UserError("there is nothing to measure: name something in --wirings, --beside or --also")
    return [replace(entry, flags=(*entry.flags, *args.further), files=tuple(args.imported)) for entry in entries]


def parse_also(text: str, parse: Callable[[str], Entry]) -> Entry:
    """Parse ``LABEL=NAME [VARIABLE=VALUE ...] [--flag=value ...]``.

    Raises:
        UserError: it is not of this form, or NAME is unknown.
    """
    label, equals, rest = text.partition("=")
    words = shlex.split(rest)
    variables = {w.partition("=")[0]: w.partition("=")[2] for w in words[1:] if re.match(r"[A-Za-z_]\w*=", w)}
    flags = tuple(w for w in words[1:] if w.startswith("--"))
    if not (label.strip() and equals and words) or len(variables) + len(flags) < len(words) - 1:
        raise UserError(
            f"--also {text!r} is not understood; valid is such as 'LABEL=pre_ln OMP_NUM_THREADS=1 --dropout=0.3'"
        )
    entry = parse(words[0])
    return replace(entry, label=label.strip(), flags=(*entry.flags, *flags), environment=variables)

"""What every contestant is given to do: sizes, batch, precision, device, and how often it is timed."""

from __future__ import annotations

import itertools
import re
from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import Any

from fairseq_residuals.wirings.core.errors import UserError

DIMENSIONS = {"base": (512, 2048, 8), "big": (1024, 4096, 16)}
"""Model dimension, width of the FFNs, heads: the two sizes of Vaswani et al. 2017, table 3."""


@dataclass(frozen=True)
class Case:
    """One line of work. Source and target have ``sentences`` sequences of ``tokens`` tokens each, without padding."""

    layers: int
    """Of the encoder, and of the decoder."""
    dim: int
    ffn_dim: int
    heads: int
    vocabulary: int
    """Words, shared by both sides, whose embeddings are also the output's."""
    sentences: int
    tokens: int
    precision: str
    """fp32, bf16, fp16, or int8, which only generates."""
    device: str
    warmup: int
    """Steps that are not timed, of each process."""
    steps: int
    """Timed steps of each process."""
    seed: int
    checkpoint_activations: bool = False
    beam: int = 1

    @property
    def target_tokens(self) -> int:
        """Of one step."""
        return self.sentences * self.tokens

    @property
    def dimensions(self) -> str:
        """As ``--dims`` takes them."""
        own = (self.dim, self.ffn_dim, self.heads)
        return next((name for name, sizes in DIMENSIONS.items() if sizes == own), "x".join(map(str, own)))

    def arguments(self) -> Namespace:
        """Return arguments as the commands of analyses have them, for what this package shares with them."""
        return Namespace(**asdict(self) | {"layers": str(self.layers)})

    def __str__(self) -> str:
        extra = ", activations recomputed" if self.checkpoint_activations else ""
        return f"{self.layers} layers, {self.dimensions}, {self.precision}{extra}"


def cases(args: Any, checkpointing: tuple[bool, ...] = (False,)) -> list[Case]:
    """Return every combination of ``--dims``, ``--precision`` and ``--layers``, and of what ``checkpointing`` says.

    Raises:
        UserError: a size is none.
    """
    for flag, least in {"vocabulary": 5, "warmup": 1, "steps": 1, "repeats": 1, "beam": 1, "timeout": 1}.items():
        if getattr(args, flag) < least:
            raise UserError(f"--{flag} must be at least {least}, not {getattr(args, flag)}")
    if min(args.layers) < 1:
        raise UserError(f"--layers must be numbers of at least 1, not {min(args.layers)}")
    sentences, tokens = _numbers("--tokens", args.tokens, 2, "64x32, sentences x tokens")
    return [
        Case(layers, *sizes, args.vocabulary, sentences, tokens, precision, args.device, args.warmup, args.steps,
             args.seed, recomputed, args.beam)
        for sizes, precision, layers, recomputed in itertools.product(
            [_sizes(text) for text in args.dims], args.precision, args.layers, checkpointing
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

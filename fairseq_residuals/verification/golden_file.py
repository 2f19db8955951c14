"""Golden files: a small model of the authors' own code, one batch, and everything that was computed with it.

``X.npz`` holds the arrays and ``X.json`` beside it, the sidecar, says what they are.
"""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.utils.documents import read_json

PAD = 1


@dataclass(frozen=True)
class Sizes:
    encoder_layers: int
    """0 for a language model."""
    decoder_layers: int
    """0 for an encoder alone."""
    dim: int
    ffn_dim: int
    heads: int


@dataclass(frozen=True)
class Hypothesis:
    tokens: Tensor
    """(length,), the end of the sentence included."""
    score: float
    """Mean log-probability of a token."""
    positional_scores: Tensor
    """(length,) log-probabilities."""


@dataclass(frozen=True)
class Generation:
    """What the authors' generator made of some sentences."""

    beam: int
    max_len: int
    """Tokens after which the end of the sentence is forced."""
    min_len: int
    lenpen: float
    src_tokens: Tensor | None
    """(B, S); None for a language model."""
    prefix: Tensor | None
    """(B, P), what the sentences of a language model have to start with."""
    sentences: list[list[Hypothesis]]
    """Best hypothesis first."""


@dataclass(frozen=True)
class Golden:
    """A golden file of any layout, parameters and gradients under the names of this plugin's checkpoints."""

    path: Path
    sizes: Sizes
    parameters: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """Of the training loss, which is a sum over target tokens; of an encoder alone, of :attr:`output_weight`'s."""
    src_tokens: Tensor | None
    """(B, S); None for a language model."""
    src_lengths: Tensor | None
    """(B,)"""
    prev_output_tokens: Tensor | None
    """(B, T); None for an encoder alone, as is the target."""
    target: Tensor | None
    """(B, T)"""
    activations: dict[str, Tensor]
    """(B, S or T, C) by name: enc_embed, enc_layer0_in, enc_layer0, encoder_out; the same of the decoder;
    decoder_features; outputs of sub-layers before any residual: enc0_self_attn, dec0_cross_attn; what else the stream
    carries: enc_layer0_dual, and attention scores (B, H, T, S or T): dec_layer0_cross_scores."""
    logits: dict[str, Tensor]
    """(B, T, V) by mode: evaluation, training, incremental; none for an encoder alone."""
    losses: dict[str, float] = field(default_factory=dict)
    """By kind: train and eval (smoothed by ``smoothing``), fairseq-0.9, fairseq-0.12, nll."""
    smoothing: str = ""
    """fairseq-0.9 or fairseq-0.12: whose formula of label smoothing the repository trains with."""
    epsilon: float = 0.1
    """How much of the probability label smoothing spreads over the vocabulary."""
    generations: dict[str, Generation] = field(default_factory=dict)
    output_weight: Tensor | None = None
    """(B, S, C); the loss of an encoder alone is the sum of its output times this."""
    positions: Tensor | None = None
    """(positions, C): the repository's sinusoids, where they are not fairseq's."""
    constant: frozenset[str] = frozenset()
    """Parameters that the authors' code does not have, and that are therefore zero and have no gradient."""


def read_sidecar(path: Path) -> dict[str, Any]:
    """The description beside the golden file ``path``.

    Raises:
        UserError: either file is missing, or the sidecar is not a JSON object.
    """
    sidecar = path.with_suffix(".json")
    for file in (path, sidecar):
        if not file.is_file() or path.suffix != ".npz":
            raise UserError(f"there is no {file}; a golden file is an X.npz with its description X.json beside it")
    description = read_json(sidecar)
    if not isinstance(description, dict):
        raise UserError(f"{sidecar} must hold a JSON object, not a {type(description).__name__}")
    return description


def variant_name(path: Path, sidecar: dict[str, Any]) -> str:
    """What the golden calls its variant: the first word in the sidecar, else in the file's name (``b2t_S``: b2t)."""
    told = sidecar.get("variant") or sidecar.get("name") or re.sub(r"_[A-Z][a-z]?\d*$", "", path.stem)
    return str(told).partition(" ")[0]


class Arrays:
    """The arrays of a golden file, as tensors; asking for one that is not there is the user's error."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            UserError: the file is damaged or is something else.
        """
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._arrays = dict(_read_array(archive, record) for record in archive.infolist())
        except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{path} is damaged (truncated?) or holds something else than NumPy arrays") from error
        self.names = tuple(self._arrays)

    def need(self, name: str) -> Tensor:
        """
        Raises:
            UserError: there is no array called ``name``.
        """
        if name not in self._arrays:
            raise UserError(f"{self.path} lacks {name}, which golden files of its kind have")
        return torch.from_numpy(self._arrays[name])

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Everything whose name starts with ``prefix``, by the rest of the name."""
        return {name.removeprefix(prefix): self.need(name) for name in self.names if name.startswith(prefix)}


def _read_array(archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> tuple[str, np.ndarray]:
    """Name and array; ``np.load`` would take memory for whatever the array's header says.

    Raises:
        ValueError: the record is no array of numbers or truth values, has not as many bytes as its header says, or is
            compressed to less than a hundredth.
    """
    if record.file_size > 100 * record.compress_size + 10_000:
        raise ValueError
    with archive.open(record) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read_header(file)
        contents = file.read()
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(contents):
        raise ValueError
    array = np.frombuffer(contents, dtype).reshape(shape, order="F" if is_fortran else "C")
    return record.filename.removesuffix(".npy"), array.copy()


def flat_activations(arrays: Arrays) -> dict[str, Tensor]:
    """What layers take and give in the layouts that call it enc_layer_0_in."""
    keys = [m for m in map(re.compile(r"(enc|dec)_layer_(\d+)(_\w+)?").fullmatch, arrays.names) if m]
    names = {m[0]: f"{m[1]}_layer{m[2]}" + (m[3] or "").replace("scores", "_scores") for m in keys}
    return {name: arrays.need(key) for key, name in names.items()} | {"encoder_out": arrays.need("encoder_out")}

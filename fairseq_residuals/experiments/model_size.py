"""How large the model of a recipe is, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from fairseq_residuals.experiments.compose import plain
from fairseq_residuals.models.architectures import ARCHITECTURES

VOCABULARY = 32_768
"""Where the corpus is not prepared; that of WMT."""


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder."""

    layers: int
    width: int
    inner: int
    """Channels between the two matrices of an FFN."""
    heads: int
    reads_encoder: bool


@dataclass(frozen=True)
class Matrices:
    """How much a model computes."""

    layers: int
    multiplied: int
    """Entries of the matrices that each position is multiplied with."""
    stored: int
    """Entries of all matrices, embeddings included."""


@dataclass(frozen=True)
class Size:
    """The parts of a model that decide how much it computes and keeps."""

    stacks: tuple[Stack, ...]
    vocabulary: int
    embeddings: int
    """Matrices as large as vocabulary times width."""

    @property
    def matrices(self) -> Matrices:
        """Count the entries of the matrices."""
        multiplied = sum(
            s.layers * ((8 if s.reads_encoder else 4) * s.width**2 + 2 * s.width * s.inner) for s in self.stacks
        )
        table = self.vocabulary * self.stacks[-1].width
        return Matrices(sum(s.layers for s in self.stacks), multiplied + table, multiplied + table * self.embeddings)


def size_of(asked: DictConfig, data: Path) -> Size | None:
    """Return the size of a composed configuration's model; None of speech, whose frames are not tokens.

    Args:
        data: the binarized corpus, whose dictionary is read where it is there.
    """
    if asked.task._name == "speech_to_text":
        return None
    model = OmegaConf.create(plain(asked)["model"])
    ARCHITECTURES[model._name](model)  # completes the settings
    stacks = tuple(
        Stack(
            model[f"{name}_layers"],
            model[f"{name}_embed_dim"],
            model[f"{name}_ffn_embed_dim"],
            model[f"{name}_attention_heads"],
            reads_encoder=name == "decoder" and "encoder_layers" in model,
        )
        for name in ("encoder", "decoder")
        if f"{name}_layers" in model
    )
    tables = 1 if model.get("share_all_embeddings") else len(stacks)
    tied = any(
        model.get(key) for key in ("share_all_embeddings", "share_decoder_input_output_embed", "tie_adaptive_weights")
    )
    return Size(stacks, _vocabulary(data), tables + (0 if tied else 1))


def _vocabulary(data: Path) -> int:
    found = sorted(data.glob("dict*.txt"))
    if not found:
        return VOCABULARY
    with found[-1].open("rb") as lines:
        return sum(1 for _ in lines)

"""Size of the model of a recipe, from its configuration alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from fairseq_residuals.lab.recipes.compose import plain
from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES

VOCABULARIES = {
    "debian": 8_400,
    "iwslt14_de_en": 10_000,
    "joeynmt_de_en": 4_100,
    "librispeech": 10_000,
    "opus100": 64_000,
    "wikitext103": 267_744,
}
"""Words of corpora that are not prepared, about."""
VOCABULARY = 32_768
"""Words of other corpora that are not prepared: those of WMT."""
IN_THE_TAIL = 1 / 20
"""Share of positions for which an adaptive softmax computes scores of rarer words than those of its head, about."""
FRAMES_OF_A_POSITION = 4
"""Two convolutions of stride 2 are below the encoder of speech."""
FRAMES_OF_A_SUBWORD = 30
"""LibriSpeech has 960 hours of 100 frames a second, and 9.4 million words of about 1.2 subwords."""


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder."""

    layers: int
    width: int
    inner: int
    """Channels between the two matrices of an FFN."""
    reads_encoder: bool


@dataclass(frozen=True)
class Matrices:
    """Sizes of a model's matrices, which say how much it computes."""

    layers: int
    width: int
    multiplied: int
    """Entries of the matrices that each token of a side is multiplied with; in speech, each frame on the average."""
    stored: int
    """Entries of all matrices, embeddings included."""


def count(stacks: Sequence[Stack], compared: int, embedded: int, convolutions: int = 0) -> Matrices:
    """Count the entries of a model's matrices.

    Args:
        compared: words whose scores are computed for a position.
        embedded: entries of embeddings and output projection together.
        convolutions: entries of those below the encoder of speech.
    """
    layers, width = sum(s.layers for s in stacks), stacks[-1].width
    entries = [s.layers * ((8 if s.reads_encoder else 4) * s.width**2 + 2 * s.width * s.inner) for s in stacks]
    projection = compared * width
    multiplied = sum(entries) + projection
    if convolutions:
        encoder, decoder = entries
        multiplied = (convolutions + encoder) // FRAMES_OF_A_POSITION + (decoder + projection) // FRAMES_OF_A_SUBWORD
    return Matrices(layers, width, multiplied, convolutions + sum(entries) + embedded)


def matrices_of(job: Job) -> Matrices:
    """Return the matrices of a run's model; the dictionary of its corpus is read where it is there."""
    asked = job.asked
    model = OmegaConf.create(plain(asked)["model"])
    ARCHITECTURES[model._name](model)  # completes the settings
    stacks = tuple(
        Stack(
            model[f"{name}_layers"],
            model[f"{name}_embed_dim"],
            model[f"{name}_ffn_embed_dim"],
            reads_encoder=name == "decoder" and "encoder_layers" in model,
        )
        for name in ("encoder", "decoder")
        if f"{name}_layers" in model
    )
    of_sound = asked.task._name == "speech_to_text"
    tables = 1 if model.get("share_all_embeddings") or of_sound else len(stacks)
    tied = any(
        model.get(key) for key in ("share_all_embeddings", "share_decoder_input_output_embed", "tie_adaptive_weights")
    )
    words, width = _vocabulary(job.data, asked.recipe.corpus), stacks[-1].width
    compared, table = words, words * width
    if model.get("adaptive_softmax_cutoff") is not None:
        bounds = [0, *map(int, model.adaptive_softmax_cutoff.split(",")), words]
        compared = bounds[1] + round(IN_THE_TAIL * (words - bounds[1]))
        factor = model.adaptive_softmax_factor
        table = sum(int((end - start) * width // factor**i) for i, (start, end) in enumerate(pairwise(bounds)))
    convolutions = _convolutions(model) if of_sound else 0
    return count(stacks, compared, table * (tables + (0 if tied else 1)), convolutions)


def _convolutions(model: DictConfig) -> int:
    """Count the entries of two convolutions, each of which halves its channels by a gate."""
    first, second = map(int, model.conv_kernel_sizes.split(","))
    channels = model.conv_channels
    bands = model.get("input_feat_per_channel", 80)
    return first * bands * channels + second * channels // 2 * 2 * model.encoder_embed_dim


def _vocabulary(data: Path, corpus: str) -> int:
    found = sorted(data.glob("dict*.txt"))
    if not found:
        return VOCABULARIES.get(corpus, VOCABULARY)
    with found[-1].open("rb") as lines:
        return sum(1 for _ in lines)

"""The sizes of a model, read off its parameters."""

from __future__ import annotations

import re

import torch

from fairseq_residuals.plugin.checkpoints.fairseq_config import Settings
from fairseq_residuals.plugin.checkpoints.importing.wiring_detection import Found, Side


def dimensions(found: Found, sides: list[Side]) -> Settings:
    """Return depth and widths of each stack.

    Raises:
        UserError: a stack has no layers of a Transformer.
    """
    sizes: Settings = {}
    for side in sides:
        layers = [
            m for m in map(re.compile(rf"{side}\.(?:transformer_)?layers\.(\d+)\..*").match, found.parameters) if m
        ]
        first = next((found.parameters[m[0]] for m in layers if m[0].endswith(".0.fc1.weight")), None)
        if first is None:
            found.refuse(f"its {side} has no layers with an FFN of fairseq's")
        sizes[f"{side}_layers"] = 1 + max(int(m[1]) for m in layers)
        sizes[f"{side}_ffn_embed_dim"], sizes[f"{side}_embed_dim"] = first.shape
    for key, value in sizes.items():
        if found.settings.get(key, value) != value:
            found.note(f"--{key.replace('_', '-')} {found.settings[key]}", str(value))
    return sizes


def sharing(found: Found) -> Settings:
    """Return which embeddings are one matrix; old versions of fairseq write no output matrix that is the embedding."""
    source, words, output = (
        found.parameters.get(f"{name}.weight")
        for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
    )
    if words is None or any(name.startswith("decoder.adaptive_softmax.") for name in found.parameters):
        return {}
    tied = output is None or torch.equal(output, words)
    if source is None:
        return {"share_decoder_input_output_embed": tied}
    everything = tied and torch.equal(source, words)
    if found.settings.get("share_all_embeddings", everything) != everything:
        found.note(f"--share-all-embeddings is {'off' if everything else 'on'}", "one" if everything else "several")
    # the first implies the second
    return {"share_all_embeddings": everything, "share_decoder_input_output_embed": tied and not everything}


def dictionary_sizes(found: Found) -> dict[str, int]:
    """Return words, special symbols included, of "source" (where words are the input) and "target".

    Raises:
        UserError: there is no embedding of words.
    """
    sizes = {"source": _words(found, "encoder"), "target": _words(found, "decoder")}
    if not sizes["target"]:
        found.refuse("its decoder has no embedding of words")
    return {side: size for side, size in sizes.items() if size}


def _words(found: Found, side: Side) -> int:
    # an adaptive input has a table per band of frequency
    table = re.compile(rf"{side}\.embed_tokens\.(?:embeddings\.\d+\.0\.)?weight")
    return sum(len(value) for name, value in found.parameters.items() if table.fullmatch(name))

"""Run fairseq's models on packed batches (``--packed``): rows of sentences end to end, without padding.

fairseq's code takes a row for one long sentence. Three things of it would notice where one sentence ends and the next
begins: positions, the mask of the future, and attention. The first two are replaced here, on the model that was built
and on no other; attention is told by the :class:`.PackedSides` of its stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.models.fairseq_stack import FairseqStack, PackedSides
from fairseq_residuals.plugin.speed import varlen_attention
from fairseq_residuals.wirings.core.base import Connection
from fairseq_residuals.wirings.core.packing import Packing


class PackedForward:
    """The forward of a model, which takes what describes a packed row beside its usual inputs.

    These are, of the source and of the target, ``*_bounds`` (n + 1), the cumulative lengths of its sentences, and
    ``*_longest``, at least the length of the longest. A side without them is padded as usual.
    """

    def __init__(self, forward: Callable[..., Any], sides: PackedSides) -> None:
        self.forward, self.sides = forward, sides

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Run the model, with its arguments."""
        words = inputs.get("src_tokens")
        source = _packing_of("source", words, inputs)
        # a language model calls its decoder's input src_tokens
        target = _packing_of("target", inputs.get("prev_output_tokens", words), inputs)
        with self.sides.running(source, target):
            return self.forward(*args, **inputs)


def _packing_of(side: str, row: Tensor | None, inputs: dict[str, Any]) -> Packing | None:
    bounds, longest = inputs.pop(f"{side}_bounds", None), inputs.pop(f"{side}_longest", None)
    return None if bounds is None or row is None else Packing(bounds, (row.size(1), longest))


class PositionsInSentence:
    """The forward of an embedding of positions, which in a packed row count from the beginning of each sentence."""

    def __init__(self, embed: Any, side: str, sides: PackedSides) -> None:
        """Look positions up in ``embed``, of the row of ``side``, ``encoder`` or ``decoder``."""
        self.forward, self.padding_idx, self.side, self.sides = embed.forward, embed.padding_idx, side, sides

    def __call__(self, tokens: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the embeddings (B, T, C) of the positions of words (B, T)."""
        packing: Packing | None = getattr(self.sides, self.side)
        if packing is None:
            return self.forward(tokens, *args, **kwargs)  # type: ignore[no-any-return]
        one_sentence = torch.full((1, packing.longest), self.padding_idx + 1, device=tokens.device)
        table: Tensor = self.forward(one_sentence)
        return table[0].index_select(0, packing.positions)[None]


class FutureMask:
    """A decoder's mask of the future; a packed row needs none of its length, as its sentences have their own."""

    def __init__(self, plain: Callable[[Tensor], Tensor], sides: PackedSides) -> None:
        self.plain, self.sides = plain, sides

    def __call__(self, x: Tensor) -> Tensor | None:
        """Return the mask (T, T) of (T, B, C), or None."""
        return self.plain(x) if self.sides.decoder is None else None


def why_no_one_shape(model: nn.Module, device: torch.device) -> str:
    """Return why packed batches cannot have one shape, which needs ``varlen_attn``; empty where they can."""
    encoder = getattr(model, "encoder", None)
    if encoder is not None and not hasattr(encoder, "embed_tokens"):
        return "packed batches have one shape only where all input is words"
    for module in model.modules():
        if isinstance(module, Connection) and module.edits_scores:
            return "packed batches have one shape only in wirings that leave the scores of attention alone"
        if hasattr(module, "out_proj") and hasattr(module, "head_dim"):
            reason = varlen_attention.why_not(module, next(module.parameters()).dtype, device)
            if reason:
                return f"packed batches have one shape only by varlen_attn ({reason})"
    return ""


def attach(model: Any) -> None:
    """Let a model that was just built take packed batches beside padded ones."""
    sides: PackedSides = model.decoder.layers.sides
    for stack in (module for module in model.modules() if isinstance(module, FairseqStack)):
        stack.sides = sides
    for side in ("encoder", "decoder"):
        positions = getattr(getattr(model, side, None), "embed_positions", None)
        if isinstance(positions, nn.Module):
            positions.forward = PositionsInSentence(positions, side, sides)  # type: ignore[method-assign,assignment]
    model.decoder.buffered_future_mask = FutureMask(model.decoder.buffered_future_mask, sides)
    model.forward = PackedForward(model.forward, sides)
    varlen_attention.attach(model)

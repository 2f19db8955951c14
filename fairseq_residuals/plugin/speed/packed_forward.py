"""Run fairseq's models on packed batches (``--packed``): rows of sentences end to end, without padding.

fairseq's code takes a row for one long sentence. Three things of it would notice where one sentence ends and the next
begins: positions, the mask of the future, and attention. The first two are replaced here, on the model that was built
and on no other; attention is told by the :class:`.PackedSides` of its stack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.models.fairseq_stack import FairseqStack, PackedSides
from fairseq_residuals.plugin.speed import varlen_attention
from fairseq_residuals.wirings.core.base import Connection
from fairseq_residuals.wirings.core.packing import Packing


def _run_packed(forward: Callable[..., Any], sides: PackedSides, *args: Any, **inputs: Any) -> Any:
    """Run the forward of a model, which takes what describes a packed row beside its usual inputs.

    These are, of the source and of the target, ``*_bounds`` (n + 1), the cumulative lengths of its sentences, and
    ``*_longest``, at least the length of the longest. A side without them is padded as usual.
    """
    words = inputs.get("src_tokens")
    source = _packing_of("source", words, inputs)
    # a language model calls its decoder's input src_tokens
    target = _packing_of("target", inputs.get("prev_output_tokens", words), inputs)
    with sides.running(source, target):
        return forward(*args, **inputs)


def _packing_of(side: str, row: Tensor | None, inputs: dict[str, Any]) -> Packing | None:
    bounds, longest = inputs.pop(f"{side}_bounds", None), inputs.pop(f"{side}_longest", None)
    return None if bounds is None or row is None else Packing(bounds, (row.size(1), longest))


def _positions_in_sentence(
    forward: Callable[..., Tensor], word: int, side: str, sides: PackedSides, tokens: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Return the embeddings (B, T, C) of the positions of words (B, T), counted from the beginning of each sentence.

    Args:
        forward: that of the embedding of positions.
        word: any but padding.
        side: the row of ``encoder`` or ``decoder``.
    """
    packing: Packing | None = getattr(sides, side)
    if packing is None:
        return forward(tokens, *args, **kwargs)
    one_sentence = torch.full((1, packing.longest), word, device=tokens.device)
    return forward(one_sentence)[0].index_select(0, packing.positions)[None]


def _future_mask(plain: Callable[[Tensor], Tensor], sides: PackedSides, x: Tensor) -> Tensor | None:
    """Return a decoder's mask (T, T) of (T, B, C); none of a packed row, whose sentences have masks of their own."""
    return plain(x) if sides.decoder is None else None


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
        positions: Any = getattr(getattr(model, side, None), "embed_positions", None)
        if positions is not None:
            forward, word = positions.forward, positions.padding_idx + 1
            positions.forward = partial(_positions_in_sentence, forward, word, side, sides)
    model.decoder.buffered_future_mask = partial(_future_mask, model.decoder.buffered_future_mask, sides)
    model.forward = partial(_run_packed, model.forward, sides)
    varlen_attention.attach(model)

"""How many of a recipe's passes a GPU takes at once, by an estimate of the memory that they need."""

from __future__ import annotations

from fairseq_residuals.lab.recipes.model_size import Size

USED = 0.75
"""Of a GPU's memory. The rest is for what fragments it, and for wirings that keep more than Post-LN."""


def bytes_of_a_pass(size: Size, tokens: int, longest: int, half: bool) -> int:
    """Return the bytes that training holds after a forward pass, for Post-LN.

    What a layer keeps is what Korthikanti et al. count (2022, "Reducing activation recomputation in large transformer
    models", section 4.1); in single precision it is twice as much.

    Args:
        tokens: of a side.
        longest: positions of the longest sample, each of which attention compares with all others.
        half: whether the model computes in half precision.
    """
    kept = sum(s.layers * _kept_by_layer(s.width, s.inner, s.heads, s.reads_encoder, longest) for s in size.stacks)
    # scores of words and their gradients, in the model's precision and in single
    scores = 12 * size.compared
    # weights, gradients, copies of both in single precision, two moments
    per_parameter = 20 if half else 16
    return per_parameter * size.matrices.stored + tokens * (kept * (1 if half else 2) + scores)


def _kept_by_layer(width: int, inner: int, heads: int, reads_encoder: bool, longest: int) -> int:
    attentions = 2 if reads_encoder else 1
    attention = 11 * width + 5 * heads * longest
    ffn = 3 * width + 4 * inner
    norms = 2 * width * (attentions + 1)
    return attentions * attention + ffn + norms


def passes_at_once(size: Size, passes: int, tokens: int, longest: int, half: bool, memory: int) -> int:
    """Return the largest power of two that divides ``passes`` and of which so many passes fit into ``memory`` bytes.

    Args:
        passes: of an update.
        tokens: of a pass.
    """
    at_once = 1
    while passes % (2 * at_once) == 0 and bytes_of_a_pass(size, 2 * at_once * tokens, longest, half) <= USED * memory:
        at_once *= 2
    return at_once

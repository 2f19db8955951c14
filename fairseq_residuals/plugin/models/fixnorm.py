"""FixNorm: the option ``fixnorm``, common to all variants.

Nguyen and Salazar 2019, "Transformers without Tears", section 3.3: the vector v of a word is used as v / ||v||, in the
embeddings and as a row of the output matrix; sqrt(C) and the positions follow. The gradient flows through the division.
Logits then have no scale of their own but the gains of the norm on top. Checked against
tnq177/transformers_without_tears@c2dfaaa (``model.py``); with ``init=small`` the table starts as there, U(±0.01).

The authors have one table for both languages and the output. Here a table that is not shared is normalized by itself.
A vector of zeros, such as fairseq's for padding, stays zero; the authors have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.utils.precision import at_least_fp32


def length(vectors: Tensor) -> Tensor:
    """Return ||v|| in single precision at least, (..., C) -> (..., 1); 1 of a vector of zeros."""
    norm = torch.linalg.vector_norm(at_least_fp32(vectors), dim=-1, keepdim=True)
    return norm.where(norm > 0, 1.0)


def normalize_embedded(embedding: nn.Module, inputs: Any, vectors: Tensor) -> Tensor:
    """Divide the output of an embedding, (B, T, C), by its length: a forward hook."""
    return (vectors / length(vectors)).to(vectors.dtype)


class NormalizedProjection(nn.Module):
    """Compute logits by a matrix whose rows have length 1."""

    def __init__(self, projection: nn.Linear) -> None:
        """Take over the parameters of ``projection``, which keep their names."""
        super().__init__()
        self.weight = projection.weight
        self.bias = projection.bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V)"""
        logits = linear(x, self.weight) / length(self.weight).squeeze(-1)
        return (logits if self.bias is None else logits + self.bias).to(x.dtype)

    def matrix(self) -> Tensor:
        """Return the matrix that the logits are products with, (V, C), for a loss that computes them itself."""
        return (self.weight / length(self.weight)).to(self.weight.dtype)


def uses_fixnorm(wirings: dict[str, Wiring]) -> bool:
    """Return whether the wirings of a model ask for it.

    Raises:
        UserError: only some of them do.
    """
    asked = {part.config.fixnorm for wiring in wirings.values() for part in wiring.parts}
    if len(asked) > 1:
        raise UserError(
            "fixnorm=true is of a whole model: give it to the wirings of both stacks and to all their parts"
        )
    return asked.pop()


def normalize_words(model: Any) -> None:
    """Divide the vectors of words by their lengths wherever ``model`` uses them.

    Raises:
        UserError: words are not rows of one table, or logits not the product with one matrix.
    """
    stacks: list[Any] = [getattr(model, "encoder", None), model.decoder]
    owners = [stack for stack in stacks if hasattr(stack, "embed_tokens")]
    projection = getattr(model.decoder, "output_projection", None)
    embeddings = dict.fromkeys(owner.embed_tokens for owner in owners)
    if not isinstance(projection, nn.Linear) or not all(isinstance(e, nn.Embedding) for e in embeddings):
        raise UserError(
            "fixnorm=true needs a vector for each word and one output matrix; leave out adaptive input, adaptive"
            " softmax and character embeddings"
        )
    for embedding in embeddings:
        embedding.register_forward_hook(normalize_embedded)
    model.decoder.output_projection = NormalizedProjection(projection)

"""Embed words by the weight of the output projection, with a gradient added to the projection's in place.

    out_t = W[w_t]                  words w (...), W (V, C), out (..., C)
    grad_W[w_t] += grad_out_t       for each position t with a word that is not padding

The gradient of an embedding is as large as W and zero but for the rows of the words in a batch. PyTorch makes all of it
and adds it to the gradient of the projection. Here only the rows that are not zero are made, and they wait until
autograd has added up the gradients of all other uses of W; the numbers are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from fairseq_residuals.wirings.utils.torch_private import backward_pass_number


class LateRows:
    """Add rows that wait to the gradient of a weight, of which this is a hook."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Tensor, Tensor]] = []
        """Rows that wait: number of their backward pass, indices (N), rows (N, C)."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Pickle as None: a pickled weight keeps its attributes, but not its hooks, and has to lose both."""
        return type(None), ()

    def wait(self, indices: Tensor, rows: Tensor) -> None:
        """Hold rows until the backward pass that is under way comes to the weight."""
        self.waiting.append((backward_pass_number(), indices, rows))

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the gradient with the rows, (V, C) -> (V, C).

        It may be changed in place: autograd has added the zeros of :class:`_Lookup` to it, so nothing else holds it.
        """
        waiting, self.waiting = self.waiting, []
        for task, indices, rows in waiting:
            if task == backward_pass_number():  # others are of a pass that an exception ended
                gradient = gradient.contiguous().index_add_(0, indices, rows)
        return gradient


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, words: Tensor, weight: Tensor, padding_idx: int | None, late: LateRows) -> Tensor:
        ctx.save_for_backward(words)
        ctx.shape, ctx.padding_idx, ctx.late = weight.shape, padding_idx, late
        return embedding(words, weight)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[None, Tensor, None, None]:  # type: ignore[override]
        (words,) = ctx.saved_tensors
        indices, places = words.unique(return_inverse=True)
        # summed in single precision at least, since frequent words have many terms
        rows = grad_out.new_zeros(
            (len(indices), grad_out.size(-1)), dtype=torch.promote_types(grad_out.dtype, torch.float32)
        )
        rows.index_add_(0, places.flatten(), grad_out.flatten(0, -2).to(rows.dtype))
        if ctx.padding_idx is not None:
            rows.masked_fill_(indices.eq(ctx.padding_idx).unsqueeze(-1), 0)
        ctx.late.wait(indices, rows.to(grad_out.dtype))
        # zeros without memory make autograd call the hook, and own the sum
        return None, grad_out.new_zeros(()).expand(ctx.shape), None, None


class TiedEmbedding(nn.Embedding):
    """Embed by the weight of another embedding, which stays as it is.

    Only training on a CPU takes the gradient in rows; elsewhere this is like any embedding.
    """

    def __init__(self, plain: nn.Embedding) -> None:
        vars(self).update(vars(plain))  # its hooks, too
        if self.weight.requires_grad and not hasattr(self.weight, "late_rows"):
            self.weight.late_rows = LateRows()  # type: ignore[attr-defined]
            self.weight.register_hook(self.weight.late_rows)  # type: ignore[attr-defined, no-untyped-call]

    def forward(self, words: Tensor) -> Tensor:
        """Look words up, (...) -> (..., C)."""
        late = getattr(self.weight, "late_rows", None)  # a copy of the weight has none
        if late is None or not self.training or words.device.type != "cpu" or not torch.is_grad_enabled():
            return super().forward(words)
        return _Lookup.apply(words, self.weight, self.padding_idx, late)  # type: ignore[no-any-return, no-untyped-call]

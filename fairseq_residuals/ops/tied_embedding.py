"""An embedding tied to the output projection, whose gradient is added to the projection's in place.

A gradient of an embedding is zero but for the rows of a batch's words, and as large as the embedding. Here only these
rows are made, and wait until autograd has the gradients of all other uses of the weight; the numbers are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class LateRows:
    """A hook on a weight: adds the rows that wait to its gradient."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Tensor, Tensor]] = []
        """Of which backward pass they are, indices (N), rows (N, C)."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A pickled weight keeps its attributes, but not its hooks: it is to have neither."""
        return type(None), ()

    def wait(self, indices: Tensor, rows: Tensor) -> None:
        """Until the backward pass that calls this comes to the weight."""
        self.waiting.append((torch._C._current_graph_task_id(), indices, rows))

    def __call__(self, gradient: Tensor) -> Tensor:
        """(V, C) -> (V, C). The former is this one's own: autograd has added the zeros of :class:`_Rows` to it."""
        waiting, self.waiting = self.waiting, []
        for task, indices, rows in waiting:
            if task == torch._C._current_graph_task_id():  # others are of a pass that was broken off
                gradient = gradient.contiguous().index_add_(0, indices, rows)
        return gradient


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, words: Tensor, weight: Tensor, padding_idx: int | None, late: LateRows) -> Tensor:
        ctx.save_for_backward(words)
        ctx.shape, ctx.padding_idx, ctx.late = weight.shape, padding_idx, late
        return nn.functional.embedding(words, weight)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[None, Tensor, None, None]:  # type: ignore[override]
        (words,) = ctx.saved_tensors
        indices, places = words.unique(return_inverse=True)
        # summed in single precision at least, since frequent words have many terms
        rows = d_out.new_zeros((len(indices), d_out.size(-1)), dtype=torch.promote_types(d_out.dtype, torch.float32))
        rows.index_add_(0, places.flatten(), d_out.flatten(0, -2).to(rows.dtype))
        if ctx.padding_idx is not None:
            rows.masked_fill_(indices.eq(ctx.padding_idx).unsqueeze(-1), 0)
        ctx.late.wait(indices, rows.to(d_out.dtype))
        return None, d_out.new_zeros(()).expand(ctx.shape), None, None


class TiedEmbedding(nn.Embedding):
    """By the weight of another, which stays as it is. On other devices than a CPU it is like any embedding."""

    def __init__(self, plain: nn.Embedding) -> None:
        super().__init__(plain.num_embeddings, plain.embedding_dim, plain.padding_idx, _weight=plain.weight.data)
        self.weight = plain.weight
        if not hasattr(self.weight, "late_rows"):
            self.weight.late_rows = LateRows()  # type: ignore[attr-defined]
            self.weight.register_hook(self.weight.late_rows)  # type: ignore[attr-defined, no-untyped-call]

    def forward(self, words: Tensor) -> Tensor:
        """(...) -> (..., C)"""
        late = getattr(self.weight, "late_rows", None)  # a copy of the weight has none
        if late is None or not self.training or words.device.type != "cpu" or not torch.is_grad_enabled():
            return super().forward(words)
        return _Rows.apply(words, self.weight, self.padding_idx, late)  # type: ignore[no-any-return, no-untyped-call]

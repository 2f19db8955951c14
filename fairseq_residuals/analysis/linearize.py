"""A trained layer replaced by a linear map of what it reads, everything else as it was.

Xu et al. 2020, "Transformer with Depth-Wise LSTM", section 4: y = F(x) becomes y = W x + b. Where a layer hands more up
than x (ResiDual's sum, an LSTM's cell), x and y are all of it: the tensors (T, B, C) of the stream that the layer
reads, which autograd tells, and that it writes. What else it would add (attention scores) is left out.

W and b start as the least squares fit of the layer's outputs on training data; further training minimises the model's
loss, with all of its own parameters frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.analysis.training_data import Sample
from fairseq_residuals.core.base import Stream
from fairseq_residuals.core.layer import Context, Layer

RANK = 1e-10
"""Directions in which the input varies less than this share of the most are not fitted: norms leave such."""


@dataclass
class LinearMap:
    """Stands for a layer."""

    reads: list[str]
    writes: list[str]
    weight: Tensor
    """(channels in + 1, channels out); the last row is b."""
    explained: float = 0.0
    """The share of the variance of "x" after the layer, on the data of the fit."""

    def __call__(self, s: Stream, context: Context) -> tuple[Stream, None]:
        x = torch.cat([s[key] for key in self.reads], -1)
        y = (x @ self.weight[:-1] + self.weight[-1]).to(s["x"].dtype)
        parts = y.split([y.size(-1) // len(self.writes)] * len(self.writes), -1)
        return s | dict(zip(self.writes, parts, strict=True)), None


@contextmanager
def replaced(layer: Layer, by: LinearMap) -> Iterator[None]:
    """Let passes through ``layer`` go through ``by`` while the context is open."""
    layer.forward = by  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del layer.forward  # the class has the layer's own


def fit(model: Any, layer: Layer, samples: Sequence[Sample]) -> LinearMap:
    """Return the least squares fit of the layer on these batches, padding left out; in double precision."""
    reads: list[str] = []
    writes: list[str] = []
    moments: list[Tensor] = []

    def see(module: Any, inputs: tuple[Stream, Context], output: tuple[Stream, Any]) -> None:
        before, after = inputs[0], output[0]
        if not writes:
            writes.extend(key for key in after if _like_x(after, key) and after[key] is not before.get(key))
            reads.extend(_read_by(module, *inputs, writes))
        keep = _not_padding(before["x"], inputs[1].padding_mask)
        x = torch.cat([before[key][keep] for key in reads], -1).double()
        x = torch.cat([x, torch.ones_like(x[:, :1])], -1)
        y = torch.cat([after[key][keep] for key in writes], -1).double()
        made = [x.T @ x, x.T @ y, y.sum(0), y.square().sum(0), y.new_tensor(float(len(y)))]
        moments[:] = [old + new for old, new in zip(moments, made, strict=True)] if moments else made

    hook = layer.register_forward_hook(see)
    try:
        with torch.no_grad():
            for sample in samples:
                model(**sample["net_input"])
    finally:
        hook.remove()
    xx, xy, y_sum, y_squares, count = moments
    weight = torch.linalg.pinv(xx, hermitian=True, rtol=RANK) @ xy
    residual = y_squares - 2 * (weight * xy).sum(0) + (weight * (xx @ weight)).sum(0)
    variance = y_squares - y_sum.square() / count
    width = len(y_sum) // len(writes)
    x = slice(writes.index("x") * width, (writes.index("x") + 1) * width)
    explained = 1 - float(residual[x].sum() / variance[x].sum())
    return LinearMap(reads, writes, weight.to(model.decoder.embed_tokens.weight.dtype), explained)


def _like_x(s: Stream, key: str) -> bool:
    return s[key].shape == s["x"].shape


def _read_by(layer: Layer, s: Stream, context: Context, writes: list[str]) -> list[str]:
    """Return the keys on which what the layer writes depends."""
    with torch.enable_grad():
        inputs = {key: s[key].detach().requires_grad_() for key in s if _like_x(s, key)}
        # not the module itself: that would call the hook which asks
        after, _ = type(layer).forward(layer, s | inputs, context)
        total = torch.stack([after[key].sum() for key in writes if after[key].requires_grad]).sum()
        gradients = torch.autograd.grad(total, list(inputs.values()), allow_unused=True)
    return [key for key, gradient in zip(inputs, gradients, strict=True) if gradient is not None]


def _not_padding(x: Tensor, padding: Tensor | None) -> Tensor:
    """(T, B), True where there is a token."""
    return x.new_ones(x.shape[:2], dtype=torch.bool) if padding is None else ~padding.T


def train(
    model: Any,
    layer: Layer,
    mapping: LinearMap,
    samples: Iterator[Sample],
    loss_of: Callable[[Sample], Tensor],
    updates: int,
    lr: float,
) -> None:
    """Train ``mapping`` by Adam on the model's loss; the model's own parameters stay as they are."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    mapping.weight.requires_grad_()
    optimizer = torch.optim.Adam([mapping.weight], lr=lr)
    try:
        for p in wanted:
            p.requires_grad_(False)
        with replaced(layer, mapping):
            for _ in range(updates):
                optimizer.zero_grad()
                loss_of(next(samples)).backward()
                optimizer.step()
    finally:
        mapping.weight.requires_grad_(False)
        for p in wanted:
            p.requires_grad_(True)

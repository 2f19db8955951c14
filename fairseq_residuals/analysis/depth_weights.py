"""The weights that a wiring has learned over depth: a matrix per stack, one axis or both of which count layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fairseq_residuals.analysis.models import stacks
from fairseq_residuals.base import Variant
from fairseq_residuals.variants.dense_former import DenseFormer

SUM_OVER_DEPTH = ("into layer", "output of layer")
"""What rows and columns of a matrix W are in x_{l+1} = sum_k W[l,k] y_k; the last row makes the output."""
AXES = {
    "dlcl_pre": SUM_OVER_DEPTH,
    "dlcl_post": SUM_OVER_DEPTH,
    "transparent_attention": ("into decoder layer", "output of encoder layer"),
}
"""By variant; of one that is not here, rows and columns are called so."""


@dataclass(frozen=True)
class DepthWeights:
    """A matrix of one stack; rows and columns are counted from ``first_row`` and ``first_column``. Nan stands where a
    layer would combine what lies above it."""

    stack: str
    name: str
    matrix: Tensor
    rows: str
    columns: str
    first_row: int = 0
    first_column: int = 0


def depth_weights(model: nn.Module) -> list[DepthWeights]:
    """The matrices over depth of all stacks, after the softmax where the wiring takes one; where an entry is a vector
    over channels, its mean."""
    found = []
    for stack in stacks(model):
        below = 0  # layers of parts of a list that come before
        depths = {n for d in (stack.shape.enc_depth, stack.shape.dec_depth, stack.shape.depth) if d for n in (d, d + 1)}
        for variant, layers in stack.segments():
            first, below = below, below + len(layers)
            depths |= {len(layers), len(layers) + 1}
            inside_linear = {p for m in variant.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
            if isinstance(variant, DenseFormer):
                found.append(_from_layer(first, _dense_former(variant, stack.shape.stack)))
                continue
            for name, parameter in variant.named_parameters():
                matrix = _over_depth(parameter.detach().float().cpu(), stack.shape.dim)
                if parameter not in inside_linear and matrix.dim() == 2 and depths >= set(matrix.shape):
                    found.append(_from_layer(first, _describe(variant, stack.shape.stack, name, matrix)))
    return found


def _from_layer(first: int, weights: DepthWeights) -> DepthWeights:
    return replace(weights, first_row=weights.first_row + first, first_column=weights.first_column + first)


def _dense_former(variant: DenseFormer, stack: str) -> DepthWeights:
    """Whose rows are vectors of their own; where there is none, a layer is fed the output below it."""
    matrix = torch.full((variant.shape.depth + 1,) * 2, float("nan"))
    matrix.fill_diagonal_(1)
    for row, terms in variant.terms.items():
        matrix[row, list(terms)] = variant.weights[str(row)].detach().float().cpu()
    return DepthWeights(stack, "a", matrix, *SUM_OVER_DEPTH, first_row=1)


def _over_depth(value: Tensor, channels: int) -> Tensor:
    for axis in reversed(range(value.dim())):
        if value.dim() > 2 and value.size(axis) in (1, channels):
            value = value.mean(axis)
    return value


def _describe(variant: Variant, stack: str, name: str, matrix: Tensor) -> DepthWeights:
    rows, columns = AXES.get(variant.name, ("row", "column"))
    if variant.name == "transparent_attention":
        return DepthWeights(stack, "softmax(W)", matrix.softmax(0).T, rows, columns, first_row=1)
    if AXES.get(variant.name) is SUM_OVER_DEPTH:
        below = torch.ones_like(matrix).tril().bool()
        if variant.config.softmax:
            if variant.config.window:
                below = below.triu(1 - variant.config.window)
            matrix, name = matrix.masked_fill(~below, float("-inf")).softmax(1), f"softmax({name})"
        return DepthWeights(stack, name, matrix.masked_fill(~below, float("nan")), rows, columns, first_row=1)
    return DepthWeights(stack, name, matrix, rows, columns)


def masked(matrix: Tensor, least: float, share: float) -> Tensor:
    """Entries whose magnitude is less than ``least``, or than ``share`` of the largest of their row, are nan."""
    size = matrix.abs().nan_to_num()
    return matrix.masked_fill(size.eq(0) | (size < least) | (size < share * size.amax(1, keepdim=True)), float("nan"))

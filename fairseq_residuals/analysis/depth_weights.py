"""The weights that a wiring has learned over depth: a matrix per stack, or per part of one."""

from __future__ import annotations

from torch import Tensor, nn

from fairseq_residuals.analysis.subject import stacks
from fairseq_residuals.core.depth_mixing import DepthWeights


def depth_weights(model: nn.Module) -> list[tuple[str, DepthWeights]]:
    """Stack and matrix of all that have one; rows and columns count the layers of the whole stack."""
    found: list[tuple[str, DepthWeights]] = []
    for stack in stacks(model):
        below = 0  # layers of parts that come before
        for variant, layers in stack.segments():
            weights = variant.depth_weights(below)
            if weights is not None:
                found.append((stack.shape.stack, weights))
            below += len(layers)
    return found


def masked(matrix: Tensor, least: float, share: float) -> Tensor:
    """Mask entries, by nan, whose magnitude is less than ``least``, or than ``share`` of the largest of their row."""
    size = matrix.abs().nan_to_num()
    return matrix.masked_fill(size.eq(0) | (size < least) | (size < share * size.amax(1, keepdim=True)), float("nan"))

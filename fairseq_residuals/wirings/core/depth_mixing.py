"""Mix tensors over depth: what the wirings share that read the outputs of all layers below.

They keep a history in the stream, "y0", "y1", ... (T, B, C), and add its entries up with weights
(:mod:`fairseq_residuals.wirings.ops.depth_sum`). Numbers that were learned for this are a matrix of
:class:`DepthWeights`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DepthWeights:
    """Hold what a wiring has learned to combine over depth, for analysis.

    Attributes:
        name: of the weights, as in the equations.
        matrix: (R, K), single precision, on the CPU; nan where a layer would combine what lies above it.
        first_row, first_column: the numbers of the first layers.
        rows, columns: what they are.
    """

    name: str
    matrix: Tensor
    first_row: int
    first_column: int
    rows: str = "into layer"
    columns: str = "output of layer"


def band(size: int, window: int) -> Tensor:
    """Return a matrix (K, K) of ones where a row reads, and zeros.

    Row l reads columns 0 to l, or the last ``window`` of these if ``window`` is not 0.
    """
    ones = torch.ones(size, size).tril()
    return ones.triu(1 - window) if window else ones


def history(s: Mapping[str, Tensor], name: str, layers: Iterable[int]) -> list[Tensor]:
    """Return the entries of a history in the stream: for "y", those called "y0", "y1", ... of ``layers``."""
    return [s[f"{name}{k}"] for k in layers]

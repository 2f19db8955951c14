"""Matrices in the layout that oneDNN multiplies by, on CPU, for as long as beams are searched."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fairseq_residuals.plugin.torch_private import packed_linear, packed_matrix, packs_type
from fairseq_residuals.wirings.speed.matmul_backend import bound_caches

PACKED = (torch.float32, torch.bfloat16)
LEAST_SIZE = 2**16
"""Entries of a matrix from which on it pays that oneDNN makes code for every number of hypotheses that there is."""


class PackedLinears(TorchFunctionMode):
    """Within it, ``F.linear`` packs each matrix when it first meets it, and again when it has changed.

    PyTorch gives products in single precision to MKL, which on processors of other makes than Intel's does not use
    all that they have; oneDNN does. Sums are added up in another order, so results differ by rounding. It acts in its
    own thread alone.
    """

    def __init__(self) -> None:
        super().__init__()
        bound_caches()
        self.packed: dict[Tensor, tuple[tuple[int, int], Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and not kwargs and _packable(*args[:2]):
            x, weight, *bias = args
            return packed_linear(x, self.pack(weight), *(bias or [None]))
        return func(*args, **(kwargs or {}))

    def pack(self, weight: Tensor) -> Tensor:
        state = (weight._version, weight.data_ptr())
        if weight not in self.packed or self.packed[weight][0] != state:
            self.packed[weight] = state, packed_matrix(weight)
        return self.packed[weight][1]


def _packable(x: Tensor, weight: Tensor) -> bool:
    return (
        isinstance(weight, torch.nn.Parameter)
        and x.device.type == "cpu"
        and x.dtype == weight.dtype
        and weight.dtype in PACKED
        and weight.numel() >= LEAST_SIZE
        and not torch.is_grad_enabled()
        and packs_type(weight.dtype)
    )

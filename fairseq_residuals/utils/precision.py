"""Choose the precision of a computation."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_fp32(x: Tensor) -> Tensor:
    """Return ``x`` in single precision if it is in half precision, else unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))

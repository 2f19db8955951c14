"""Choose the precision of a computation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def at_least_fp32(x: Tensor) -> Tensor:
    """Return ``x`` in single precision if it is in half precision, else unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Compute without rounding streams such as ``x``, as Pre-LN's stream is not rounded under autocast either."""
    kind = x.device.type  # "meta" has no autocast; to ask PyTorch which have one breaks the graph of 2.9's compiler
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)

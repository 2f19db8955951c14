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
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()

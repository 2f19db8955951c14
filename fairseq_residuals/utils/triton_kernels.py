"""Tell whether kernels in Triton run here; PyTorch's builds for CUDA bring it, those for a CPU do not."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Return whether Triton was asked to interpret kernels, which it can on a CPU (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def kernels_run_on(*tensors: Tensor | None) -> bool:
    """Return whether kernels run on the devices of ``tensors``, in their precisions; None has neither.

    torch.compile makes kernels of its own, so while it traces they do not.
    """
    if torch.compiler.is_compiling() or not has_triton():
        return False
    present = [x for x in tensors if x is not None]
    return all((x.is_cuda or (interpreted() and x.device.type == "cpu")) and x.dtype in PRECISIONS for x in present)

"""Choice of the library that multiplies matrices in single precision on a CPU: oneDNN or MKL."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.wirings.ops import hyper_mix

logger = logging.getLogger(__name__)

CACHED_PRODUCTS = 64


@functools.cache
def bound_caches() -> None:
    """Have oneDNN and PyTorch keep code for few shapes of products, unless the environment says for how many.

    oneDNN makes code for every shape of a product, and both keep that of 1,024 shapes: half a GB, where hardly two
    batches have one shape. This counts from oneDNN's first product in a process on.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(CACHED_PRODUCTS))


@functools.cache
def onednn_is_exact() -> bool:
    """Return whether oneDNN multiplies in full precision where it is permitted to round factors to bf16.

    That permission is PyTorch's only way to prefer oneDNN to MKL for such products, and oneDNN makes use of it where
    the processor has units for it (AMX). There MKL is fast as well; on processors of other makes than Intel's it is
    not.
    """
    if not torch.backends.mkldnn.is_available():
        logger.warning("this PyTorch cannot multiply by oneDNN; products stay as they are")
        return False
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn((2, 256, 256), generator=generator)
    with torch.no_grad(), products_by_onednn():
        error = (left @ right).double() - left.double() @ right.double()
    exact = bool(error.norm() < 1e-5 * 256)  # the product's norm is near 256 * sqrt(256)
    if not exact:
        logger.info("oneDNN would round factors to bf16 here; products stay as they are")
    return exact


@contextmanager
def _products(precision: str) -> Iterator[None]:
    switch: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = switch.fp32_precision
    switch.fp32_precision = precision
    try:
        yield
    finally:
        switch.fp32_precision = before


@contextmanager
def products_by_onednn() -> Iterator[None]:
    """Let oneDNN compute a model's products in single precision; it may round factors: see :func:`onednn_is_exact`.

    Those of many tiny matrices stay MKL's, which takes half of oneDNN's time for them. The choice is the process's: of
    several threads let one make it, around what all of them do.
    """
    with _products("bf16"), hyper_mix.around_small_products.attached(_small_products):
        yield


def _small_products(x: Tensor) -> AbstractContextManager[None]:
    """Let MKL compute them, whatever else was asked for."""
    return _products("ieee") if x.device.type == "cpu" else nullcontext()

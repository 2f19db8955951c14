"""What makes training on a CPU faster.

fairseq's trainer (:func:`tune_training`) and its beam search keep freed memory by themselves for models of this plugin;
a training loop of your own enters :func:`tuned`. ``--fast-on-cpu`` adds what changes the order of sums, and the random
numbers of dropout: in single precision a run without it continues one of stock fairseq bit for bit. (In bf16, which
stock fairseq does not train in on a CPU, attention is opened without being asked, see ``attention.py``.)
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn

from fairseq_residuals.ops import hyper_mix
from fairseq_residuals.ops.tied_embedding import TiedEmbedding
from fairseq_residuals.performance.activation_recompute import RemadeLayerNorm, making_again
from fairseq_residuals.performance.fast_dropout import FastDropout

logger = logging.getLogger(__name__)

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of mallopt(3)."""
LARGEST_INT = 2**31 - 1
LEAST_WIDTH = 256
"""Channels from which on oneDNN's products are faster than MKL's also where hardly two batches have one shape: it has
to make code for each. At 64 channels they took longer, at 128 as long."""
CACHED_PRODUCTS = 64


def make_fast(model: nn.Module) -> None:
    """What ``--fast-on-cpu`` asks of a model that was just built; on other devices nothing changes."""
    model.fast_on_cpu = True  # type: ignore[assignment]
    widths = [m.embed_dim for m in model.modules() if isinstance(m, MultiheadAttention)]
    model.is_wide = max(widths) >= LEAST_WIDTH  # type: ignore[assignment]
    last = getattr(getattr(model, "decoder", None), "output_projection", None)
    tied = last.weight if isinstance(last, nn.Linear) else None
    for module in list(model.modules()):
        if isinstance(module, MultiheadAttention):
            module.fast_on_cpu = True
        for name, child in module.named_children():
            if type(child) is FairseqDropout:
                setattr(module, name, FastDropout(child.p, child.module_name))
            elif type(child) is nn.LayerNorm:
                setattr(module, name, RemadeLayerNorm(child))
            elif type(child) is nn.Embedding and child.weight is tied:
                setattr(module, name, TiedEmbedding(child))


@functools.cache
def keep_freed_memory() -> bool:
    """From now on this process keeps the memory that it frees for what it allocates next; whether it does.

    By default glibc maps every tensor above some size anew, at most 32 MiB, and the kernel zeroes its pages each time.
    Other C libraries are left as they are, and so is glibc where the environment has settings for it.
    """
    if platform.libc_ver()[0] != "glibc" or any(n.startswith(("MALLOC_", "GLIBC_TUNABLES")) for n in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, LARGEST_INT))


@functools.cache
def bound_caches() -> None:
    """oneDNN makes code for every shape of a product, and both it and PyTorch keep that of 1,024 shapes: half a GB,
    where hardly two batches have one shape. From its first product on these are fewer, unless the environment says how
    many."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(CACHED_PRODUCTS))


@functools.cache
def onednn_is_exact() -> bool:
    """Whether oneDNN multiplies matrices in single precision in full where it is permitted to round them to bf16.

    That permission is PyTorch's only way to prefer oneDNN to MKL for such products, and oneDNN makes use of it where
    the processor has units for it (AMX). There MKL is fast as well; on processors of other makes than Intel's it is
    not.
    """
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.backends.mkldnn, "matmul")):
        logger.warning("--fast-on-cpu: this PyTorch cannot multiply by oneDNN; products stay as they are")
        return False
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn((2, 256, 256), generator=generator)
    with torch.no_grad(), products_by_onednn():
        error = (left @ right).double() - left.double() @ right.double()
    exact = bool(error.norm() < 1e-5 * 256)  # the product's norm is near 256 * sqrt(256)
    if not exact:
        logger.info("--fast-on-cpu: oneDNN would round factors to bf16 here; products stay as they are")
    return exact


@contextmanager
def _products(precision: str) -> Iterator[None]:
    switch: Any = getattr(torch.backends.mkldnn, "matmul", None)  # PyTorch does not declare it, and older ones lack it
    if switch is None:
        yield
        return
    before = switch.fp32_precision
    switch.fp32_precision = precision
    try:
        yield
    finally:
        switch.fp32_precision = before


@contextmanager
def products_by_onednn() -> Iterator[None]:
    """In it, products in single precision are oneDNN's, which may round factors: see :func:`onednn_is_exact`. Those of
    many tiny matrices stay MKL's, which takes half of oneDNN's time for them."""
    with _products("bf16"), hyper_mix.around_small_products.attached(_small_products):
        yield


def products_by_mkl() -> AbstractContextManager[None]:
    """In it, they are not, whatever else was asked for."""
    return _products("ieee")


def _small_products(x: Tensor) -> AbstractContextManager[None]:
    return products_by_mkl() if x.device.type == "cpu" else nullcontext()


@contextmanager
def tuned(model: nn.Module) -> Iterator[None]:
    """In it, ``model``, which is on a CPU, trains as fast as its settings permit."""
    keep_freed_memory()
    bound_caches()
    fast = getattr(model, "fast_on_cpu", False)
    with (
        products_by_onednn() if fast and model.is_wide and onednn_is_exact() else nullcontext(),
        making_again() if fast else nullcontext(),
    ):
        yield


@functools.cache
def tune_training() -> None:
    """From now on fairseq's trainer does it, if it trains on a CPU."""
    from fairseq.trainer import Trainer

    Trainer.train_step = _tuned(Trainer.train_step)


def _tuned(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def tuned_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "cpu":
            return step(self, *args, **kwargs)
        with tuned(self.get_model()):
            return step(self, *args, **kwargs)

    return tuned_step

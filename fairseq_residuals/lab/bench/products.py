"""The limit that matrix products set: which ones a model makes, and how fast ``torch.matmul`` is at each here.

What is recorded is what a step really computes, forward and backward: linear layers, the output's projection, and the
products of attention over all heads at once. A fused attention counts as the products that its mathematics needs, two
forward and four backward (Dao et al. 2022, "FlashAttention", appendix B), although kernels compute the scores anew.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_residuals.wirings.speed.matmul_backend import onednn_is_exact, products_by_onednn

FIRST_FACTOR = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Which argument of an operation is the left matrix; the right one follows."""
OPAQUE = ("aten::_transformer_encoder_layer_fwd",)
"""Operations with products inside that their arguments do not tell: they may be of nested tensors."""
AT_LEAST_SECONDS = 0.02
"""Of a block of runs between two looks at the clock: a GPU is to be asked for many before it is waited for."""
BLOCKS = 3


class Product(NamedTuple):
    """(batch, m, k) times (batch, k, n), in a precision; the factors may be transposed views."""

    batch: int
    m: int
    k: int
    n: int
    left_transposed: bool
    right_transposed: bool
    dtype: str

    @property
    def flops(self) -> int:
        """A multiplication and an addition are two."""
        return 2 * self.batch * self.m * self.k * self.n


class Recorder(TorchDispatchMode):
    """Counts the products that are made while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Product] = Counter()
        self.complete = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in FIRST_FACTOR:
            left, right = args[FIRST_FACTOR[name] :][:2]
            self.counts[_product(left, right)] += 1
        elif "scaled_dot_product" in name:
            self.counts.update(_attention(name, args))
        elif name in OPAQUE:
            self.complete = False
        return func(*args, **kwargs or {})


def _product(left: Tensor, right: Tensor) -> Product:
    *batch, m, k = left.shape
    dtype = str(left.dtype).removeprefix("torch.")
    return Product(batch[0] if batch else 1, m, k, right.size(-1), _is_transposed(left), _is_transposed(right), dtype)


def _is_transposed(matrix: Tensor) -> bool:
    return matrix.stride(-1) != 1 and matrix.stride(-2) == 1


def _attention(name: str, args: Any) -> list[Product]:
    backward = name.endswith("_backward")
    query, key = args[1:3] if backward else args[:2]
    (batch, heads, t, d), s = query.shape, key.size(2)
    each, dtype = batch * heads, str(query.dtype).removeprefix("torch.")
    scores = Product(each, t, d, s, False, True, dtype)  # q k^T; backward: dy v^T
    values = Product(each, t, s, d, False, False, dtype)  # p v; backward: dp k
    if not backward:
        return [scores, values]
    return [scores, values, *[Product(each, s, t, d, True, False, dtype)] * 2]  # p^T dy, dp^T q


@torch.no_grad()
def seconds_of(products: Iterable[Product], device: torch.device) -> list[float]:
    """Return what each product takes here: the median of several blocks of runs.

    Of PyTorch's ways to compute it as exactly, the fastest counts.
    """
    return [_fastest(product, device) for product in products]


def _fastest(product: Product, device: torch.device) -> float:
    seconds = _seconds(product, device)
    if device.type == "cpu" and product.dtype == "float32" and onednn_is_exact():
        with products_by_onednn():
            seconds = min(seconds, _seconds(product, device))
    return seconds


def _seconds(product: Product, device: torch.device) -> float:
    dtype = getattr(torch, product.dtype)
    left = _factor(product.batch, product.m, product.k, product.left_transposed, dtype, device)
    right = _factor(product.batch, product.k, product.n, product.right_transposed, dtype, device)
    out = torch.matmul(left, right)

    def block(runs: int) -> float:
        began = now(device)
        for _ in range(runs):
            torch.matmul(left, right, out=out)
        return (now(device) - began) / runs

    runs = 1
    while (first := block(runs)) * runs < AT_LEAST_SECONDS:
        runs *= 2
    return statistics.median([first, *(block(runs) for _ in range(BLOCKS - 1))])


def _factor(batch: int, rows: int, columns: int, transposed: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    shape = (columns, rows) if transposed else (rows, columns)
    made = torch.randn((batch, *shape) if batch > 1 else shape, device=device).to(dtype)
    return made.mT if transposed else made


def now(device: torch.device) -> float:
    """Return the clock, when ``device`` has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()

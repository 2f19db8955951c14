"""Time each kernel beside what PyTorch computes without it, forward and backward, in turns.

    python -m fairseq_residuals.benchmark.kernels --device cuda --markdown kernels.md

On a GPU both are recorded as CUDA graphs, so that what is timed is the device's work and not Python's. ``--device cpu``
tries the command out: kernels are then references, and the figures mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_residuals.analysis.models import device_of
from fairseq_residuals.ops.bias_activation import bias_activation
from fairseq_residuals.ops.depth_sum import softmax_sum, weighted_sum
from fairseq_residuals.ops.hyper_mix import depth_connection, width_connection
from fairseq_residuals.ops.residual_norm import Norm, Summands, residual_norm
from fairseq_residuals.ops.seeded_dropout import draw_dropout
from fairseq_residuals.ops.sinkhorn import sinkhorn
from fairseq_residuals.performance import cuda_graphs
from fairseq_residuals.performance.fused_kernels import kernels_of_ops
from fairseq_residuals.utils.tables import markdown_table, text_table
from fairseq_residuals.utils.triton_kernels import kernels_run_on
from modern_fairseq.atomic_write import atomic_write

P = 0.1
"""Of dropout."""
HEAD = ("op", "PyTorch, us", "kernel, us", "ratio", "GB/s of the kernel")
Op = Callable[..., Tensor]


class Case(NamedTuple):
    """An op at one shape: what PyTorch computes, the kernel, and their inputs, all of which get gradients."""

    name: str
    plain: Op
    kernel: Op
    inputs: list[Tensor]


def cases(tokens: int, dim: int, dtype: torch.dtype, device: torch.device) -> list[Case]:
    """Return an op of each kind, of ``tokens`` positions and ``dim`` channels, four streams and twelve layers."""

    def draw(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    x, y, weight, bias = draw(tokens, 1, dim), draw(tokens, 1, dim), draw(dim), draw(dim)
    streams = draw(tokens, 1, 4, dim)
    read, mix, write = (draw(tokens, 1, *shape, dtype=torch.float32) for shape in ((1, 4), (4, 4), (4, 1)))
    values = [draw(tokens, 1, dim) for _ in range(12)]

    def normalized(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return residual_norm(Summands(x, y, draw_dropout(P, device)), Norm(weight, bias, 1e-5))[1]

    def activated(h: Tensor, bias: Tensor) -> Tensor:
        return bias_activation(h, bias, "relu", draw_dropout(P, device))

    def mixed(streams: Tensor, read: Tensor, mix: Tensor) -> Tensor:
        u, new = width_connection(streams, read, mix)
        return torch.cat([u.unsqueeze(-2), new], -2)

    return [
        Case(
            "residual, dropout, norm",
            lambda x, y, weight, bias: F.layer_norm(x + F.dropout(y, P), (dim,), weight, bias),
            normalized,
            [x, y, weight, bias],
        ),
        Case(
            "bias, ReLU, dropout",
            lambda h, bias: F.dropout(F.relu(h + bias), P),
            activated,
            [draw(tokens, 4 * dim), draw(4 * dim)],
        ),
        Case("Sinkhorn, n=4", sinkhorn, sinkhorn, [draw(4, 4, tokens, 1, dtype=torch.float32)]),
        Case("width connection, n=4", mixed, mixed, [streams, read, mix]),
        Case("depth connection, n=4", depth_connection, depth_connection, [streams, write, y]),
        Case("weighted sum of 12", _summed, _summed, [draw(12, 1), *values]),
        Case("softmax over 12", _attended, _attended, [weight, *values]),
    ]


def _summed(weights: Tensor, *values: Tensor) -> Tensor:
    return weighted_sum(weights, values)


def _attended(direction: Tensor, *values: Tensor) -> Tensor:
    return softmax_sum(direction, values, 1e-6)


def both_passes(op: Op, inputs: Sequence[Tensor], device: torch.device) -> Callable[[], object]:
    """Return what runs the forward and backward pass of an op, on a GPU as a graph."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    grad = torch.ones_like(op(*leaves))

    def run() -> list[Tensor]:
        return list(torch.autograd.grad(op(*leaves), leaves, grad))

    if device.type != "cuda":
        return run
    cuda_graphs.warm_up(run, device)
    return cuda_graphs.Graph(run, device, cuda_graphs.new_pool()).replay


def seconds(run: Callable[[], object], times: int, device: torch.device) -> float:
    """Return how long one of several runs takes, without a look at the clock in between."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        run()
    _wait(device)
    return (time.perf_counter() - began) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(case: Case, device: torch.device, times: int, rounds: int) -> tuple[str, float, float, float, float]:
    """Return a row of :data:`HEAD`: medians of ``rounds`` in turns."""
    by_kernel: AbstractContextManager[None] = kernels_of_ops() if kernels_run_on(*case.inputs) else nullcontext()
    plain = both_passes(case.plain, case.inputs, device)
    with by_kernel:
        kernel = both_passes(case.kernel, case.inputs, device)
    pairs = [(seconds(plain, times, device), seconds(kernel, times, device)) for _ in range(rounds)]
    slow, fast = (statistics.median(column) for column in zip(*pairs, strict=True))
    # what has to be moved: inputs twice, their gradients, the output and its gradient, which is about as large as one
    moved = sum(3 * x.numel() * x.element_size() for x in case.inputs)
    return case.name, 1e6 * slow, 1e6 * fast, slow / fast, moved / fast / 1e9


def main() -> None:
    """Time all kernels, and print and write the figures."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda", help="cuda or cpu (%(default)s)")
    options.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="bf16", help="(%(default)s)")
    options.add_argument("--tokens", type=int, default=3584, help="positions (%(default)s)")
    options.add_argument("--dim", type=int, default=512, help="channels (%(default)s)")
    options.add_argument("--times", type=int, default=50, help="runs between two looks at the clock (%(default)s)")
    options.add_argument("--rounds", type=int, default=5, help="of which medians are taken (%(default)s)")
    options.add_argument("--markdown", type=Path, metavar="FILE", help="for the table")
    args = options.parse_args()
    device = device_of(args.device)
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[args.precision]
    rows = [measure(case, device, args.times, args.rounds) for case in cases(args.tokens, args.dim, dtype, device)]
    print(text_table(HEAD, rows))
    if args.markdown:
        with atomic_write(args.markdown) as partial:
            partial.write_text(markdown_table(HEAD, rows) + "\n")


if __name__ == "__main__":
    main()

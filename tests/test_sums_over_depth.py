"""Attention Residuals, DenseFormer, LAuReL: which outputs are summed, half precision, what is kept for the gradient."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from autograd_memory import kept_for_gradients
from tiny import build, stacks
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm
from wired_sublayers import Wired, assert_close, wired

from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.variants.attention_residuals import SoftmaxOverDepth

LAYERS = 4
DEPTH = 6
"""Layers of DenseFormer."""


def average(over_depth: Any, sources: list[Tensor]) -> Tensor:
    v = torch.stack(sources)
    keys = rms_norm(v, (16,), over_depth.key_gain, 1e-6)
    return torch.einsum("itb,itbc->tbc", torch.einsum("itbc,c->itb", keys, over_depth.query).softmax(0), v)


def equations(one: Wired, block: int, skipped: Collection[int]) -> Tensor:
    """The output by the paper's Eq. 2 to 6: whole blocks, and inside one the sum so far; without layers ``skipped``."""
    sublayers, wiring = one.sublayers(), one.stack.wiring
    n_sub, block = len(sublayers) // LAYERS, block or 1
    whole, inside = [one.x], []
    for k, (connection, f) in enumerate(sublayers):
        if k % block == 0 and inside:
            whole, inside = [*whole, torch.stack(inside).sum(0)], []
        if k // n_sub in skipped:
            continue
        sources = [*whole, torch.stack(inside).sum(0)] if inside else whole
        fed = sources[0] if connection.over_depth is None else average(connection.over_depth, sources)
        inside.append(f(layer_norm(fed, (16,), connection.norm.weight, connection.norm.bias, 1e-6)))
    out = average(wiring.over_depth, [*whole, torch.stack(inside).sum(0)] if inside else whole)
    return layer_norm(out, (16,), wiring.norm.weight, wiring.norm.bias, 1e-6)


def ask(one: Wired) -> Wired:
    """With queries that tell sources apart."""
    generator = torch.Generator().manual_seed(9)
    for module in one.stack.modules():
        if isinstance(module, SoftmaxOverDepth):
            module.query.data = torch.randn(16, generator=generator, dtype=torch.double)
    return one


def test_parameters_start_as_published_and_the_first_sublayer_has_none() -> None:
    for stack in stacks(build("translation", "attention_residuals")):
        first = [name for name, _ in stack[0].self_attn_connection.named_parameters()]
        assert set(first) == {"norm.weight", "norm.bias"}
        queries = [p for name, p in stack.named_parameters() if name.endswith("query")]
        gains = [p for name, p in stack.named_parameters() if name.endswith("key_gain")]
        assert len(queries) == len(gains) == sum(len(stack[i].kinds) for i in range(2))
        assert all(p.eq(0).all() for p in queries) and all(p.eq(1).all() for p in gains)


@torch.no_grad()
@pytest.mark.parametrize("block", [0, 2, 3])
@pytest.mark.parametrize("skipped", [set(), {0}, {1}, {1, 2}, {3}, {0, 1, 2, 3}])
def test_a_skipped_layer_is_no_source(block: int, skipped: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for one in map(ask, wired("attention_residuals", f"block={block}", layers=LAYERS)):
        chances = torch.tensor([0.0 if i in skipped else 1.0 for i in range(LAYERS)])
        expected = equations(one, block, skipped)
        one.stack.train()
        one.stack.layerdrop = 0.5
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "uniform_", lambda self, chances=chances: self.copy_(chances))
            found = one.output()
        assert_close(found, expected)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("aligned", [False, True])
def test_half_precision(dtype: torch.dtype, aligned: bool) -> None:
    """Sources of very different sizes; along the query, products of 1.6e5, beyond the largest number of half precision
    (the logit is 82)."""
    over_depth, generator = SoftmaxOverDepth(512), torch.Generator().manual_seed(1)
    over_depth.query.copy_(
        0.16 * torch.randn(512, generator=generator).sign() if aligned else torch.randn(512, generator=generator) / 20
    )
    sources = [size * torch.randn(4, 2, 512, generator=generator) for size in (1e-3, 1.0, 1e2, 2e3)]
    if aligned:
        sources[-1] = (2e3 * over_depth.query.sign()).expand(4, 2, 512)
    exact = over_depth({f"source{i}": x for i, x in enumerate(sources)})
    out = over_depth.to(dtype)({f"source{i}": x.to(dtype) for i, x in enumerate(sources)})
    assert out.dtype == dtype
    assert (out.float() - exact).abs().max() < 0.02 * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_kept_for_the_gradient_grows_with_the_sources_alone(dtype: torch.dtype) -> None:
    """Nothing of a source's size is kept for each pair of sub-layers."""
    x = torch.randn(5, 2, 64, dtype=dtype)
    over_depth = SoftmaxOverDepth(64).to(dtype)
    s = {f"source{i}": (x + i).requires_grad_() for i in range(6)}
    with kept_for_gradients(x.numel()) as kept:
        over_depth(s)
    assert kept == {source.data_ptr() for source in s.values()}


def rows(dilation: int, period: int) -> dict[int, list[int]]:
    """Which outputs are summed after which layers, as the paper has it."""
    return {
        i: [j for j in range(i + 1) if j % dilation == i % dilation] for i in range(1, DEPTH + 1) if i % period == 0
    }


@pytest.mark.parametrize(("dilation", "period"), [(1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (2, 3), (4, 5)])
def test_outputs_live_as_long_as_they_are_summed(dilation: int, period: int) -> None:
    summed = rows(dilation, period)
    for one in wired("dense_former", f"dilation={dilation},period={period}", layers=DEPTH):
        wiring = one.stack.wiring
        s: Stream = wiring.open(one.x)
        for i in range(DEPTH + 1):
            if i:
                s = wiring.after_layer(i - 1, s | {"x": one.x + i})
            later = {j for row, js in summed.items() if row > i for j in js if j <= i}
            assert set(s) == {"x", *(f"output{j}" for j in later)}
            assert all(torch.equal(s[f"output{j}"], one.x + j) for j in later)


def test_parameters() -> None:
    """L(L + 3)/2 weights, that of the newest 1 and the others 0."""
    for stack in stacks(build("translation", "dense_former", layers=DEPTH)):
        weights: dict[str, Tensor] = dict(stack.wiring.weights.items())
        assert sum(len(row) for row in weights.values()) == DEPTH * (DEPTH + 3) / 2
        assert all(row.tolist() == [0] * (len(row) - 1) + [1] for row in weights.values())


def test_what_is_kept_for_the_gradient_grows_with_the_outputs_alone() -> None:
    """Each sum keeps the outputs that it is of, which the layers hold anyway, and nothing else of their size."""
    for one in wired("dense_former", layers=DEPTH):
        s = one.stack.wiring.open(one.x)
        outputs = [(one.x + i).detach().requires_grad_() for i in range(1, DEPTH + 1)]
        with kept_for_gradients(one.x.numel()) as kept:
            for i, output in enumerate(outputs):
                s = one.stack.wiring.after_layer(i, s | {"x": output})
        assert kept == {value.data_ptr() for value in (one.x, *outputs)}


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, (16,), norm.weight, norm.bias, norm.eps)


def laurel(one: Wired, k: int) -> Tensor:
    """The output by the paper, of which no code was published.

    ``k``: how many of the last outputs are added up; 0: x itself, without coefficients.
    """
    outputs = [one.x]
    for connection, f in one.sublayers():
        x, y = outputs[-1], f(normed(connection.norm, outputs[-1]))
        total = torch.zeros_like(x)
        if k:
            recent = outputs[::-1][:k]
            assert len(connection.c) == len(recent)
            total = sum((c * old for c, old in zip(connection.c, recent, strict=True)), total)
        elif connection.low_rank is not None:
            total = x
        if connection.low_rank is not None:
            total = total @ connection.low_rank.down.weight.T @ connection.low_rank.up.weight.T
        if connection.weights is None:
            outputs.append(y + x + total)
        else:
            shares = connection.weights.exp() / connection.weights.exp().sum()
            outputs.append(2 * shares[0] * y + 2 * shares[1] * (x + total))
    return normed(one.stack.wiring.norm, outputs[-1])


@pytest.mark.parametrize(
    ("name", "args", "k"),
    [
        ("laurel_rw", "", 0),
        ("laurel_lr", "rank=3", 0),
        ("laurel_lr", "rank=3,rw=true", 0),
        ("laurel_pa", "", 3),
        ("laurel_pa", "past=1,rank=0", 1),
        ("laurel_pa", "past=100,rank=2,rw=true", 100),
    ],
)
def test_laurel(name: str, args: str, k: int) -> None:
    """The output, and the gradient of all that it is made of."""
    for one in wired(name, args, layers=4):
        outputs = one.output(), laurel(one, k)
        assert_close(*outputs)
        weights, leaves = torch.linspace(-1, 1, outputs[0].numel()), [one.x, *one.stack.parameters()]
        assert_close(*(torch.autograd.grad(out.flatten() @ weights.to(out), leaves) for out in outputs))

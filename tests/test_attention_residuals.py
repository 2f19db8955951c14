"""Attention Residuals: the paper's equations, full and in blocks, and Pre-LN at the start."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from autograd_memory import kept_for_gradients
from tiny import build, stacks
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm
from wired_sublayers import Wired, assert_close, wired

from fairseq_residuals.wirings.variants.attention_residuals import SoftmaxOverDepth

LAYERS = 4
BLOCKS = pytest.mark.parametrize("block", [0, 1, 2, 3, 4, 5, 100])


def average(over_depth: Any, sources: list[Tensor]) -> Tensor:
    v = torch.stack(sources)
    keys = rms_norm(v, (16,), over_depth.key_gain, 1e-6)
    return torch.einsum("itb,itbc->tbc", torch.einsum("itbc,c->itb", keys, over_depth.query).softmax(0), v)


def equations(one: Wired, block: int, skipped: Collection[int] = ()) -> tuple[list[Tensor], Tensor]:
    """What each sub-layer is fed before its norm, and the output, by the paper's Eq. 2 to 6: whole blocks, and inside
    one the sum so far. ``skipped`` are layers that layer dropout takes away."""
    sublayers, wiring = one.sublayers(), one.stack.wiring
    n_sub, block = len(sublayers) // LAYERS, block or 1
    whole, inside, fed = [one.x], [], []
    for k, (connection, f) in enumerate(sublayers):
        if k % block == 0 and inside:
            whole, inside = [*whole, torch.stack(inside).sum(0)], []
        if k // n_sub in skipped:
            continue
        sources = [*whole, torch.stack(inside).sum(0)] if inside else whole
        fed.append(sources[0] if connection.over_depth is None else average(connection.over_depth, sources))
        inside.append(f(layer_norm(fed[-1], (16,), connection.norm.weight, connection.norm.bias, 1e-6)))
    out = average(wiring.over_depth, [*whole, torch.stack(inside).sum(0)] if inside else whole)
    return fed, layer_norm(out, (16,), wiring.norm.weight, wiring.norm.bias, 1e-6)


def ask(one: Wired) -> Wired:
    """With queries that tell sources apart."""
    generator = torch.Generator().manual_seed(9)
    for module in one.stack.modules():
        if isinstance(module, SoftmaxOverDepth):
            module.query.data = torch.randn(16, generator=generator, dtype=torch.double)
    return one


@BLOCKS
def test_equations(block: int) -> None:
    for one in map(ask, wired("attention_residuals", f"block={block}", layers=LAYERS)):
        seen: list[Tensor] = []
        for connection, _ in one.sublayers():
            connection.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(output[0]["x"]))
        out = one.output()
        fed, expected = equations(one, block)
        assert_close(seen, fed)
        assert_close(out, expected)
        found, wanted = one.gradients(out), one.gradients(expected)
        assert found.keys() == wanted.keys() == {"x", *dict(one.stack.named_parameters())}
        assert_close(found, wanted)


@BLOCKS
def test_starts_as_pre_ln(block: int) -> None:
    """At queries of 0, up to the eps of the norms: in function and in all gradients."""
    plain = wired("pre_ln", layers=LAYERS, eps=1e-14)
    for one, other in zip(
        wired("attention_residuals", f"block={block}", layers=LAYERS, eps=1e-14, like="pre_ln"), plain, strict=True
    ):
        for module in one.stack.modules():
            if isinstance(module, SoftmaxOverDepth):
                torch.nn.init.zeros_(module.query)
        assert_close(one.output(), other.output())
        found = one.gradients(one.output())
        assert_close({name: found[name] for name in other.gradients(other.output())}, other.gradients(other.output()))


@pytest.mark.parametrize("block", [0, 4])
def test_inklings_form(block: int) -> None:
    """Sources are added up normalized, logits divided by sqrt(C): at queries of 0, the mean of unit vectors."""
    args = f"block={block},values=normed,scale=true"
    for one in wired("attention_residuals", args, layers=LAYERS):
        over_depth = one.stack.wiring.over_depth
        assert [name for name, _ in over_depth.named_parameters()] == ["query"]
        sources = {f"source{i}": torch.randn(3, 2, 16, dtype=torch.double) for i in range(5)}
        units = torch.stack([v / v.square().mean(-1, keepdim=True).sqrt() for v in sources.values()])
        shares = (units @ over_depth.query / 4).softmax(0)
        assert_close(over_depth(sources), (shares.unsqueeze(-1) * units).sum(0))
        torch.nn.init.zeros_(over_depth.query)
        assert_close(over_depth(sources), units.mean(0))
        assert one.output().isfinite().all()


def test_what_sublayers_are_fed_shrinks_as_the_sources_grow() -> None:
    """At queries of 0 it is the stream of Pre-LN over the number of its terms."""
    plain = wired("pre_ln", layers=LAYERS, eps=1e-14)
    for one, other in zip(wired("attention_residuals", layers=LAYERS, eps=1e-14, like="pre_ln"), plain, strict=True):
        fed: list[Tensor] = []
        streams: list[Tensor] = []
        for (mine, _), (theirs, _) in zip(one.sublayers(), other.sublayers(), strict=True):
            if mine.over_depth is not None:
                torch.nn.init.zeros_(mine.over_depth.query)
            mine.norm.register_forward_pre_hook(lambda module, inputs, fed=fed: fed.append(inputs[0]))
            theirs.norm.register_forward_pre_hook(lambda module, inputs, streams=streams: streams.append(inputs[0]))
        one.output(), other.output()
        for k, (h, x) in enumerate(zip(fed, streams, strict=True)):
            assert_close(h, x / (k + 1))


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
@pytest.mark.parametrize("skipped", [{0}, {1}, {1, 2}, {3}, {0, 1, 2, 3}])
def test_a_skipped_layer_is_no_source(block: int, skipped: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for one in map(ask, wired("attention_residuals", f"block={block}", layers=LAYERS)):
        chances = torch.tensor([0.0 if i in skipped else 1.0 for i in range(LAYERS)])
        expected = equations(one, block, skipped)[1]
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

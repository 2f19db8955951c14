"""mHC: the Sinkhorn steps, the router's gradient, the paper's equations, and where the streams part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sublayers import kept_for_gradients
from test_hyper_connections import (
    assert_computes_pre_ln,
    connections,
    double_without_eps,
    stream_of,
    streams_like,
    sublayer,
)
from tiny import batch, build, logits, perturb
from torch import Tensor, nn

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.variants._multi_stream import keys, side_by_side
from fairseq_residuals.variants._stream_router import EPS, NormedProduct, sinkhorn

LM = "language_modeling"


def plain_sinkhorn(logits: Tensor) -> Tensor:
    """As Eq. 9 says it."""
    m = logits.exp()
    for _ in range(20):
        m = m / m.sum(0, keepdim=True)
        m = m / m.sum(1, keepdim=True)
    return m


def random_logits(n: int, std: float, matrices: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return std * torch.randn(n, n, matrices, generator=torch.Generator().manual_seed(n), dtype=dtype)


@pytest.mark.parametrize("n", (1, 2, 3, 4))
@pytest.mark.parametrize("std", (0.1, 1, 3))
def test_sinkhorn_is_the_plain_loop(n: int, std: float) -> None:
    for dtype, error in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        results = []
        for function in (sinkhorn, plain_sinkhorn):
            values = random_logits(n, std, 200, dtype).requires_grad_()
            out = function(values)
            out.mul(random_logits(n, 1, 200, dtype)).sum().backward()
            results.append((out.detach(), values.grad))
        torch.testing.assert_close(results[0], results[1], rtol=error, atol=error)
    assert n == 1 or results[1][1].abs().max() > 0.01


def test_sinkhorns_gradient_is_that_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(sinkhorn, random_logits(3, 2, 4, torch.float64).requires_grad_())


def test_sinkhorn_keeps_its_logits_alone() -> None:
    values = random_logits(4, 1, 50).requires_grad_()
    with kept_for_gradients(1) as kept:
        sinkhorn(values)
    assert kept == {values.data_ptr()}


@pytest.mark.parametrize(("std", "error"), [(1, 1.5e-4), (3, 5e-2)])
def test_rows_sum_to_one_and_columns_nearly(std: float, error: float) -> None:
    m = sinkhorn(random_logits(4, std, 10_000))
    assert (m >= 0).all()
    torch.testing.assert_close(m.sum(1), torch.ones(4, 10_000), rtol=0, atol=1e-6)
    columns = (m.sum(0) - 1).abs().amax(0)
    # the steps stop before they converge, later for a few matrices in a thousand than for the others
    assert columns.quantile(0.998) < error and columns.max() > 1e-4


def test_no_logit_is_too_large() -> None:
    values = torch.tensor([[1e4, 0.0], [0.0, 1e4]]).requires_grad_()
    m = sinkhorn(values)
    m.sum().backward()
    torch.testing.assert_close(m, torch.eye(2))
    assert values.grad is not None and values.grad.isfinite().all() and not plain_sinkhorn(values).isfinite().all()


def test_one_stream_is_kept_as_it_is() -> None:
    router = connections(perturb(build(LM, "mhc", "--residual-args", "n=1")))[0].router
    assert torch.equal(router(torch.randn(5, 2, 1, 16)).mix, torch.ones(5, 2, 1, 1))


@pytest.mark.parametrize("centred", (False, True))
def test_the_product_and_its_gradient(centred: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 12, generator=generator, dtype=torch.float64).add(2).requires_grad_()
    weight = torch.randn(7, 12, generator=generator, dtype=torch.float64).requires_grad_()
    norm = nn.functional.layer_norm if centred else nn.functional.rms_norm
    torch.testing.assert_close(NormedProduct.apply(x, weight, centred, 0.01), weight @ norm(x, (12,), eps=0.01).T)
    assert torch.autograd.gradcheck(NormedProduct.apply, (x, weight, centred, 0.01))


def test_the_product_keeps_its_input_and_no_copy() -> None:
    x, weight = torch.randn(50, 64).half().requires_grad_(), torch.randn(3, 64).half().requires_grad_()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = NormedProduct.apply(x, weight, True, EPS)
    assert out.dtype == torch.float32
    assert [t.dtype for t in kept if t.shape == x.shape] == [torch.float16]
    out.sum().backward()
    assert x.grad is not None and weight.grad is not None and x.grad.dtype == weight.grad.dtype == torch.float16


@pytest.mark.parametrize("task", ("translation", LM, "speech"))
@pytest.mark.parametrize("args", ("", "mixing=identity", "n=1", "n=3"))
def test_with_a_zero_router_it_computes_what_pre_ln_computes(task: str, args: str) -> None:
    model = double_without_eps(build(task, "mhc", "--residual-args", args, layers=4))
    for connection in connections(model):
        nn.init.zeros_(connection.router.logits.weight)
    assert_computes_pre_ln(model, task)


@pytest.mark.parametrize("n", (1, 2, 3, 4))
def test_a_perturbed_connection_is_the_papers_equation(n: int) -> None:
    model = perturb(build("translation", "mhc", "--residual-args", f"n={n}"), scale=0.5)
    connection = connections(model)[4].double()
    router, streams = connection.router, streams_like(connection, n)
    after, _ = connection(stream_of(streams), sublayer)
    (a_pre, a_post, a_res), bias = router.scale, router.logits.bias
    for t in range(3):
        for b in range(2):
            x = streams[t, b]
            flat = x.flatten()
            made = router.logits.weight @ (flat / (flat.square().mean() + EPS).sqrt())
            pre = torch.sigmoid(a_pre * made[:n] + bias[:n])
            post = 2 * torch.sigmoid(a_post * made[n : 2 * n] + bias[n : 2 * n])
            res = plain_sinkhorn((a_res * made[2 * n :] + bias[2 * n :]).view(n, n))
            u = sum(pre[i] * x[i] for i in range(n))
            y = sublayer(connection.norm(u), None)[0]
            for j in range(n):
                expected = post[j] * y + sum(res[j, i] * x[i] for i in range(n))
                torch.testing.assert_close(after[keys(n)[j]][t, b], expected, rtol=1e-12, atol=1e-12)


def spread_after_training(model: Any, updates: int = 10) -> float:
    """How far apart the streams are at the top, after some updates in double precision. By gradient descent: Adam takes
    what rounding leaves of a gradient of zero for a direction."""
    inputs, seen = batch(LM), []
    model.double().decoder.layers[1].register_forward_hook(
        lambda m, args, out: seen.append(side_by_side(out[0], 4).detach())
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(updates + 1):
        loss = nn.functional.cross_entropy(logits(model, LM, inputs), inputs["src_tokens"][inputs["src_tokens"].ne(1)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (seen[-1] - seen[0]).abs().max() > 0.01
    return (seen[-1] - seen[-1][:, :, :1]).abs().max().item()


@pytest.mark.parametrize("mixing", ("uniform", "identity"))
def test_streams_part_unless_the_router_is_zero(mixing: str) -> None:
    spreads = {}
    for router in (1.0, 0.0):
        model = build(LM, "mhc", "--residual-args", f"mixing={mixing}").train()
        for connection in connections(model):
            connection.router.logits.weight.data.mul_(router)
        spreads[router] = spread_after_training(model)
    assert spreads[1.0] > 1e-3 and spreads[0.0] < 1e-12


def test_a_router_that_keeps_the_streams_alike_is_refused() -> None:
    for args in ("router=0", "router=0,mixing=identity", "n=2,router=0,close=learned", "router=1e-50", "router=0.009"):
        with pytest.raises(UserError, match=r"router=\S+ .* streams alike.* give a number of at least 0\.01"):
            build(LM, "mhc", "--residual-args", args)
    build(LM, "mhc", "--residual-args", "router=0.01")
    build(LM, "mhc", "--residual-args", "n=1,router=0")


def test_where_the_router_starts() -> None:
    for args, std in (("", 1.0), ("router=3", 3.0)):
        (router, *_) = (c.router for c in connections(build(LM, "mhc", "--residual-args", args)))
        assert router.logits.weight.shape == (24, 64)
        assert router.logits.weight.std().item() == pytest.approx(std / 8, rel=0.1)
        assert not router.logits.bias.any() and router.scale.tolist() == pytest.approx([0.01] * 3)
        mix = router(torch.randn(5, 2, 4, 16)).mix
        torch.testing.assert_close(mix, torch.full_like(mix, 0.25), rtol=0, atol=0.02)
    (router, *_) = (c.router for c in connections(build(LM, "mhc", "--residual-args", "mixing=identity")))
    mix = router(torch.randn(5, 2, 4, 16)).mix
    # of 4 I the rows and columns are alike, so that one step is all
    diagonal = torch.tensor(4.0).exp() / (torch.tensor(4.0).exp() + 3)
    expected = torch.eye(4) * diagonal + (1 - torch.eye(4)) * (1 - diagonal) / 3
    torch.testing.assert_close(mix, expected.expand_as(mix), rtol=0, atol=0.02)


@pytest.mark.parametrize("variant", ("hyper_connections", "mhc"))
def test_the_learned_read_out_is_a_gate_per_stream(variant: str) -> None:
    model = perturb(build(LM, variant, "--residual-args", "close=learned"), scale=0.5).double()
    wiring = model.decoder.layers.wiring
    streams = streams_like(connections(model)[0], 4)
    out = wiring.close(stream_of(streams))
    flat = streams.flatten(2)
    normed = flat / (flat.square().mean(-1, keepdim=True) + EPS).sqrt()
    head = wiring.read_out
    gates = torch.sigmoid(head.scale * (normed @ head.logits.weight.T) + head.logits.bias) + 1e-6
    torch.testing.assert_close(out, wiring.norm((gates.unsqueeze(-1) * streams).sum(2)), rtol=1e-12, atol=1e-12)
    assert (out - wiring.norm(streams.sum(2))).abs().max() > 0.01

"""Hyper-Connections: where they start, and the streams as they travel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from autograd_memory import kept_for_gradients
from tiny import batch, build, logits, perturb, stacks
from torch import Tensor

from fairseq_residuals.wirings.variants._streams import StreamsConnection, stack_streams, stream_keys


def connections(model: Any) -> list[StreamsConnection]:
    return [module for module in model.modules() if isinstance(module, StreamsConnection)]


def sublayer(h: Tensor, s: Any) -> tuple[Tensor, None, Any]:
    """Some function of every position."""
    return (h * 3).sin() + h.roll(1, -1), None, s


def stream_of(streams: Tensor) -> dict[str, Tensor]:
    """(T, B, n, C) as it travels."""
    return dict(zip(stream_keys(streams.size(-2)), streams.unbind(-2), strict=True))


def streams_like(connection: StreamsConnection, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(3, 2, n, connection.site.dim, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("scale", (1.0, 2.0))
def test_only_output_matrices_are_scaled(scale: float) -> None:
    plain = dict(build("translation", "hyper_connections").named_parameters())
    model = build("translation", "hyper_connections", "--residual-args", f"out_scale={scale}")
    for name, value in model.named_parameters():
        factor = scale if name.endswith(("out_proj.weight", "fc2.weight")) else 1.0
        assert torch.equal(value, factor * plain[name]), name


@pytest.mark.parametrize("variant", ("hyper_connections", "mhc"))
def test_a_connection_keeps_its_streams_once(variant: str) -> None:
    connection = connections(perturb(build("language_modeling", variant)))[0]
    streams = streams_like(connection, 4).float()
    with kept_for_gradients(streams.numel()) as kept:
        connection(stream_of(streams), sublayer)
    assert len(kept - {parameter.data_ptr() for parameter in connection.parameters()}) == 1


def test_each_sublayer_starts_by_reading_the_next_stream() -> None:
    model = build("translation", "hyper_connections", "--residual-args", "n=4", layers=3)
    for stack in stacks(model):
        read = [connection.router.static[:, 0].argmax().item() for connection in connections(stack)]
        assert read == [k % 4 for k in range(3 * len(stack[0].kinds))]


@pytest.mark.parametrize("variant", ("hyper_connections", "mhc"))
def test_every_stream_is_a_tensor_of_its_own(variant: str) -> None:
    model = perturb(build("translation", variant))
    seen = []

    def see(module: Any, inputs: Any, output: Any) -> None:
        before, (after, _) = inputs[0], output
        assert list(before) == list(after) == ["x", "x1", "x2", "x3"]
        assert all(after[key].shape == before["x"].shape for key in after)
        seen.append(after)

    for connection in connections(model):
        connection.register_forward_hook(see)
    logits(model, "translation", batch("translation"))
    assert len(seen) == 2 * 2 + 2 * 3
    assert all((s["x"] - s["x3"]).abs().max() > 0.01 for s in seen)


@pytest.mark.parametrize("variant", ("hyper_connections", "mhc"))
def test_streams_are_not_rounded_under_autocast(variant: str) -> None:
    connection = connections(perturb(build("language_modeling", variant)))[0]
    streams = streams_like(connection, 4).float()
    s = stream_of(streams)
    matrix = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    seen = []

    def rounding_sublayer(h: Tensor, s: Any) -> tuple[Tensor, None, Any]:
        seen.append((h, h @ matrix))
        return h @ matrix, None, s

    with torch.autocast("cpu", torch.bfloat16):
        rounded = stack_streams(connection(s, rounding_sublayer)[0], 4)
    exact = stack_streams(connection(s, rounding_sublayer)[0], 4)
    assert seen[0][1].dtype == torch.bfloat16 and rounded.dtype == torch.float32
    assert torch.equal(seen[0][0], seen[1][0])
    # what differs is the sub-layer's output, each stream's weight of it included
    weights = connection.router(streams).write
    difference = weights * (seen[0][1].float() - seen[1][1]).unsqueeze(-2)
    torch.testing.assert_close(rounded - exact, difference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ("hyper_connections", "mhc"))
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_the_router_computes_in_single_precision(variant: str, dtype: torch.dtype) -> None:
    router = connections(perturb(build("language_modeling", variant)))[0].router.to(dtype)
    streams = (30 * torch.randn(50, 4, 4, 16, generator=torch.Generator().manual_seed(1))).to(dtype)
    found = router(streams)
    exact = router.double()(streams.double())
    for single, value in zip(found, exact, strict=True):
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), value, rtol=1e-5, atol=2e-6)

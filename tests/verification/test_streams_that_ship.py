"""What released models make of n streams is what our connections make, for more sizes than golden files have."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from perturbation import perturb
from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.variants._streams import stream_keys

pytest.importorskip("transformers", reason="the extra hf is not installed")

SIZES = [(1, 8, 3), (2, 12, 5), (3, 16, 1), (5, 24, 7)]
"""Streams, channels, rank."""


def gated_residual(theirs: Any, ours: Any, streams: Tensor, y: Tensor) -> Tensor:
    for i, gain in enumerate(theirs.hc_norm.weight.unflatten(0, (len(ours.gated.norms), -1))):
        ours.gated.norms[i].weight.data.copy_(1 + gain)
    ours.gated.down.data.copy_(theirs.input_mix_weight_down.weight)
    ours.gated.up.data.copy_(theirs.input_mix_weight_up.weight)
    ours.inject.data.copy_(theirs.block_inject_weight.weight)
    read, _, written = theirs(streams.flatten(-2))
    return torch.cat([read.unsqueeze(-2), streams + written.unsqueeze(-1) * y.unsqueeze(-2)], -2)


def copy_router(theirs: Any, logits: Any, scale: Tensor) -> None:
    logits.weight.data.copy_(theirs.fn)
    logits.bias.data.copy_(theirs.base)
    scale.data.copy_(theirs.scale)


def identity_hc(theirs: Any, ours: Any, streams: Tensor, y: Tensor) -> Tensor:
    copy_router(theirs, ours.router.logits, ours.router.scale)
    written, read = theirs(streams)
    return torch.cat([ours.norm(read).unsqueeze(-2), streams + written.unsqueeze(-1) * y.unsqueeze(-2)], -2)


def mhc(theirs: Any, ours: Any, streams: Tensor, y: Tensor) -> Tensor:
    copy_router(theirs, ours.router.logits, ours.router.scale)
    n = streams.size(-2)
    for p in (ours.router.logits.weight.data, ours.router.logits.bias.data):
        # theirs are numbered by old streams first
        p[2 * n :] = p[2 * n :].unflatten(0, (n, n)).transpose(0, 1).flatten(0, 1)
    written, mixed, read = theirs(streams)
    new = written.unsqueeze(-1) * y.unsqueeze(-2) + mixed.mT @ streams
    return torch.cat([ours.norm(read).unsqueeze(-2), new], -2)


def run_ours(connection: Connection, streams: Tensor, y: Tensor) -> Tensor:
    """What is read, and the new streams, (B, T, n, C), (B, T, C) -> (B, T, 1 + n, C)."""
    keys = stream_keys(streams.size(-2))
    read, s = connection.read(dict(zip(keys, streams.transpose(0, 1).unbind(-2), strict=True)))
    s = connection.write(s, y.transpose(0, 1))
    return torch.stack([read, *(s[key] for key in keys)], -2).transpose(0, 1)


@pytest.mark.parametrize(("n", "width", "rank"), SIZES)
@pytest.mark.parametrize(
    ("module", "kind", "compare", "wiring"),
    [
        ("qwen4_exp", "Qwen4ExpTextGatedResidual", gated_residual, "gated_residual(rank={rank},start=qwen"),
        ("hy_v4", "HYV4HyperConnection", identity_hc, "identity_hc(start=hy4"),
        ("glm5_next", "Glm5NextTextHyperConnection", mhc, "mhc(mixing=uniform"),
    ],
)
def test_a_connection_is_theirs(
    module: str, kind: str, compare: Any, wiring: str, n: int, width: int, rank: int
) -> None:
    config = SimpleNamespace(
        hidden_size=width,
        hc_count=n,
        hc_mult=n,
        hc_lowrank=rank,
        hc_eps=0.0,
        hc_magnitude=2.0,
        rms_norm_eps=1e-5,
        hc_sinkhorn_iters=20,
    )
    theirs = getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), kind)(config)
    torch.manual_seed(n)
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.5)
    segment = Wiring.parse(f"{wiring.format(rank=rank)},n={n},norm=rms,norm_eps=1e-5)").parts[0]
    shape = StackShape("decoder", 2, width, 2 * width, 2, 0, 2, cross=False)
    variant = segment.build(shape)
    ours = perturb(variant.connect(Site(**vars(variant.shape), kind="ffn", layer=1, index=1, n_sub=2)))
    streams, y, weights = torch.randn(2, 3, n, width), torch.randn(2, 3, width), torch.randn(2, 3, n + 1, width)
    results = []
    for run in (lambda x: compare(theirs, ours, x, y), lambda x: run_ours(ours, x, y)):
        x = streams.clone().requires_grad_()
        out = run(x)
        results.append((out.detach(), *torch.autograd.grad((weights * out).sum(), x)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=2e-5)

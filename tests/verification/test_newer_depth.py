"""How the newer designs carry variance and gradients through 24 layers that are not trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.models import build_model
from tiny import make_task, settings, stacks
from torch import Tensor
from torch.nn.functional import cross_entropy

from fairseq_residuals.wirings.core.layer import CONNECTIONS


def connections(layer: Any) -> list[Any]:
    return [getattr(layer, CONNECTIONS[kind]) for kind in layer.kinds]


def deep(name: str, seed: int) -> tuple[Any, Tensor]:
    """24 layers of a language model of width 64 without positions, its matrices drawn by Xavier's rule; words."""
    torch.manual_seed(seed)
    flags = ["--decoder-layers", "24", "--decoder-embed-dim", "64", "--decoder-ffn-embed-dim", "256", "--dropout", "0"]
    flags += ["--decoder-attention-heads", "4", "--no-token-positional-embeddings", "--residual-args", "init=xavier"]
    model = build_model(settings("transformer_lm_pre_ln", "--residual", name, *flags), make_task())
    return model, torch.randint(4, 40, (4, 16))


# of the stream over channels, after 1, 12 and 48 sub-layers: one seed of another implementation
VARIANCES = {
    "pre_ln": (1.27, 6.1, 24),
    "layernorm_scaling": (1.27, 2.7, 3.5),
    "peri_ln": (2.0, 13.6, 42),
    "post_sublayer_norm": (2.0, 13.7, 42),
    "mix_ln": (1, 1, 29),
    "keel": (1.27, 1, 1),
}


@torch.no_grad()
@pytest.mark.parametrize("name", VARIANCES)
def test_how_variance_grows_with_depth(name: str) -> None:
    found: list[Tensor] = []
    for seed in range(4):
        model, words = deep(name, seed)
        (stack,) = stacks(model)
        for i in range(24):
            for connection in connections(stack[i]):
                connection.register_forward_hook(
                    lambda _, __, out: found.append(out[0]["x"].var(-1, unbiased=False).mean())
                )
        model(words)
    variance = torch.stack(found).view(4, 48).mean(0)
    torch.testing.assert_close(variance[[0, 11, 47]], torch.tensor(VARIANCES[name]).float(), rtol=0.25, atol=0)
    if name in ("peri_ln", "post_sublayer_norm"):
        # each sub-layer adds 1: the sign of its last matrix is random, so what it adds has no correlation on average
        torch.testing.assert_close(variance, torch.arange(2, 50).float(), rtol=0.15, atol=0)
    normed = {"mix_ln": slice(0, 12), "keel": slice(1, 48)}.get(name, slice(0, 0))
    torch.testing.assert_close(variance[normed], torch.ones(48)[normed], rtol=0, atol=1e-3)


def gradients_by_layer(name: str, dim: int) -> Tensor:
    """The norm over parameters of at least ``dim`` dimensions, a mean over seeds, (24,)."""
    found = []
    for seed in range(2):
        model, words = deep(name, seed)
        cross_entropy(model(words)[0].flatten(0, 1), words.flip(1).flatten()).backward()
        layers = [[p.grad for p in stacks(model)[0][i].parameters() if p.dim() >= dim] for i in range(24)]
        found.append(torch.stack([torch.stack([grad.norm() for grad in grads]).norm() for grads in layers]))
    return torch.stack(found).mean(0)


def test_gradients_of_keel_are_flat_from_the_second_layer() -> None:
    matrices = gradients_by_layer("keel", dim=2)
    assert matrices[1:].max() / matrices[1:].min() < 1.2
    pre_ln = gradients_by_layer("pre_ln", dim=2)
    assert pre_ln[1:].max() / pre_ln[1:].min() > 2
    # with its norms, the first layer has 5.2 times that of the others in another implementation
    every = gradients_by_layer("keel", dim=1)
    torch.testing.assert_close(every[0] / every[1:].mean(), torch.tensor(5.2), rtol=0.25, atol=0)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("post_sublayer_norm", 10, torch.inf), ("post_sublayer_norm(qk_norm=true)", 2, 8), ("peri_ln", 2, 8)],
)
def test_the_gradient_of_the_first_layer_beside_the_last(name: str, least: float, most: float) -> None:
    """Why OLMo 2, whose sub-layers read the stream as it is, has norms of queries and keys."""
    gradients = gradients_by_layer(name, dim=2)
    assert least < gradients[0] / gradients[-1] < most

"""Wired stacks away from their initial values, and their sub-layers without the wiring, for tests of equations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tiny import build, perturb, stacks
from torch import Tensor, nn

from fairseq_residuals.wirings.core.layer import CONNECTIONS

SubLayer = Callable[[Tensor], Tensor]


@dataclass
class Wired:
    """A stack in double precision and evaluation mode, with what to put through it."""

    stack: Any
    x: Tensor
    """(T, B, C), a leaf."""
    memory: Tensor | None

    def output(self) -> Tensor:
        out = self.stack(self.x, self.memory)
        return out[0] if isinstance(out, tuple) else out

    def sublayers(self) -> list[tuple[Any, SubLayer]]:
        """From the bottom, each with its connection, which owns the parameters of the wiring."""
        found: list[tuple[Any, SubLayer]] = []
        for i in range(len(self.stack)):
            layer = self.stack[i]
            run = {"self": self_attention, "cross": cross_attention, "ffn": feed_forward}
            found += [
                (getattr(layer, CONNECTIONS[kind]), lambda h, f=run[kind], layer=layer: f(layer, h, self.memory))
                for kind in layer.kinds
            ]
        return found

    def gradients(self, output: Tensor) -> dict[str, Tensor]:
        """Of a loss of ``output`` that weighs its entries unlike, by the name of what they are with respect to."""
        places = {"x": self.x} | dict(self.stack.named_parameters())
        loss = (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum()
        found = torch.autograd.grad(loss, list(places.values()), allow_unused=True)
        return {name: g for name, g in zip(places, found, strict=True) if g is not None}


def assert_close(found: Any, expected: Any) -> None:
    """Within what single precision allows, which fairseq's softmax of attention has in double precision too."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def self_attention(layer: Any, h: Tensor, memory: Tensor | None) -> Tensor:
    return layer.self_attn(h, h, h)[0]


def cross_attention(layer: Any, h: Tensor, memory: Tensor | None) -> Tensor:
    return layer.encoder_attn(h, memory, memory)[0]


def feed_forward(layer: Any, h: Tensor, memory: Tensor | None) -> Tensor:
    return layer.fc2(layer.fc1(h).relu())


def wired(name: str, args: str = "", *, layers: int = 3, eps: float = 0.0, like: str = "") -> list[Wired]:
    """Encoder and decoder of a model.

    Args:
        eps: of all norms, if it is not the one that they have.
        like: another variant; the model has the values that one of its has, where both have the parameter.
    """
    model = perturb(build("translation", "pre_ln", "--residual", name, "--residual-args", args, layers=layers))
    if like:
        model.load_state_dict(perturb(build("translation", like, layers=layers)).state_dict(), strict=False)
    for module in model.modules():
        if eps and isinstance(module, nn.LayerNorm):
            module.eps = eps
    generator = torch.Generator().manual_seed(3)
    x, memory = (torch.randn(n, 2, 16, generator=generator, dtype=torch.double) for n in (5, 6))
    encoder, decoder = stacks(model.double())
    return [Wired(encoder, x.requires_grad_(), None), Wired(decoder, x, memory)]

"""Stacks of random depth, width, options and sub-layers, which need no fairseq; any of them is found again by its
:class:`Draw`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import torch
from hypothesis import HealthCheck, Phase, assume, settings, strategies
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.attention import MultiheadAttention
from fairseq_residuals.wirings.core.base import StackShape, Variant
from fairseq_residuals.wirings.core.config import Option, options_of, parse_options, show_value
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.wiring import Wiring

LARGEST_INTEGER, LARGEST_FACTOR = 4, 2.0
"""Of the options that are drawn: stacks are small, and larger factors over depth leave the range of rounding."""


def examples(n: int) -> settings:
    """Draw n examples, the same each time. They are small, and to shrink them takes longer than to read them."""
    phases, checks = (Phase.generate,), list(HealthCheck)
    return settings(
        max_examples=n, derandomize=True, deadline=None, database=None, phases=phases, suppress_health_check=checks
    )


class FixedMask(nn.Module):
    """A dropout that drops the same channels each time, so that it is seen where it stands."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("factors", torch.rand(dim).gt(0.3) / 0.7)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors


@dataclass(frozen=True)
class Draw:
    """What a stack is made of."""

    variant: str
    args: str
    shape: StackShape
    seed: int

    def build(self, *, perturbed: bool = True) -> Stack:
        """The stack in double precision and evaluation mode, every parameter away from its initial value."""
        torch.manual_seed(self.seed)
        stack = build_stack(Wiring.parse(self.variant, self.args), self.shape)
        with torch.no_grad():
            for parameter in stack.parameters() if perturbed else ():
                parameter.add_(0.2 * torch.randn_like(parameter))
        return stack.double().eval()

    def exists(self) -> bool:
        """Whether the variant has a meaning there: some have conditions on depth or width."""
        try:
            Wiring.parse(self.variant, self.args).build(self.shape)
        except UserError:
            return False
        return True

    def inputs(self, length: int = 4, sentences: int = 2) -> tuple[Tensor, Context]:
        """Embeddings (T, B, C), a leaf, and what fairseq's loops hand to layers: the last position of the last
        sentence is padding in the memory, or in an encoder itself."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        x = torch.randn(length, sentences, self.shape.dim, generator=generator, dtype=torch.double)
        padding = torch.zeros(sentences, length, dtype=torch.bool)
        padding[-1, -1] = True
        if self.shape.stack == "encoder":
            return x.requires_grad_(), Context(padding_mask=padding)
        causal = torch.full((length, length), -math.inf, dtype=torch.double).triu(1)
        memory = torch.randn(length, sentences, self.shape.dim, generator=generator, dtype=torch.double)
        if not self.shape.cross:
            return x.requires_grad_(), Context(self_attn_mask=causal)
        return x.requires_grad_(), Context(self_attn_mask=causal, memory=memory, memory_padding_mask=padding)


def build_stack(wiring: Wiring, shape: StackShape) -> Stack:
    """Sub-layers as PyTorch draws them, wired."""
    cross = shape.stack == "decoder" and shape.cross
    layers: list[Any] = [
        SimpleNamespace(
            self_attn=MultiheadAttention(shape.dim, shape.heads),
            encoder_attn=MultiheadAttention(shape.dim, shape.heads) if cross else None,
            fc1=nn.Linear(shape.dim, shape.ffn_dim),
            fc2=nn.Linear(shape.ffn_dim, shape.dim),
            activation_fn=torch.tanh,
            activation_dropout_module=nn.Identity(),
            dropout_module=FixedMask(shape.dim),
        )
        for _ in range(shape.depth)
    ]
    return Stack(layers, wiring.build(shape), shape)


@strategies.composite
def shapes(draw: Any, variant: str) -> StackShape:
    """Encoders and decoders, in pairs and alone, as far as the variant has a meaning there."""
    alone = draw(strategies.booleans()) and not VARIANTS[variant].refusal(alone=True, topmost=True)
    stack: Literal["encoder", "decoder"] = draw(strategies.sampled_from(("encoder", "decoder")))
    depths = strategies.integers(1, 5)
    depth, other, heads = draw(depths), draw(depths), draw(strategies.sampled_from((1, 2)))
    shape = StackShape(
        stack=stack,
        depth=depth,
        dim=heads * draw(strategies.sampled_from((4, 6))),
        ffn_dim=draw(strategies.sampled_from((5, 6))),
        heads=heads,
        enc_depth=depth if stack == "encoder" else other,
        dec_depth=depth if stack == "decoder" else other,
        cross=not alone,
    )
    return replace(shape, **{f"{'dec' if stack == 'encoder' else 'enc'}_depth": 0}) if alone else shape


def values(option: Option) -> SearchStrategy[str]:
    """What the option may be set to, small."""
    kinds = get_args(option.type) if get_origin(option.type) not in (None, Literal) else (option.type,)
    found: list[SearchStrategy[Any]] = []
    for kind in kinds:
        low, high = option.minimum, option.maximum
        if get_origin(kind) is Literal:
            found.append(strategies.sampled_from(get_args(kind)))
        elif kind is bool:
            found.append(strategies.booleans())
        elif kind is int:
            assert low is not None and high is not None
            found.append(strategies.integers(int(low), int(min(high, LARGEST_INTEGER))))
        elif kind is float:
            assert low is not None and high is not None
            hundredths = strategies.integers(math.ceil(100 * max(low, -1)), math.floor(100 * min(high, LARGEST_FACTOR)))
            found.append(hundredths.map(lambda n: n / 100))
    return strategies.one_of(found).map(show_value)


@strategies.composite
def draws(draw: Any, variant: str, shape: SearchStrategy[StackShape] | None = None) -> Draw:
    """Stacks of ``variant``; an option that is for training alone has its default."""
    options = [o for o in options_of(VARIANTS[variant].Config).values() if not o.for_training]
    common = options_of(Variant.Config)
    rarely = strategies.integers(0, 3).map(lambda n: n == 0)
    chosen = [o for o in options if draw(rarely if o.name in common else strategies.booleans())]
    args = ",".join(f"{o.name}={draw(values(o))}" for o in chosen)
    config = parse_options(variant, VARIANTS[variant].Config, args)[0]
    assume(not VARIANTS[variant].contradiction(config))
    one = Draw(variant, args, draw(shapes(variant) if shape is None else shape), draw(strategies.integers(0, 2**16)))
    assume(one.exists())
    return one

"""The surroundings of a golden file's wiring: a small model of this plugin's own stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from fairseq_residuals.wirings.core.attention import Edit, open_attention
from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.wiring import Wiring
from tests.golden_check.fixtures import Golden

if TYPE_CHECKING:
    from tests.golden_check.hosts.host_recipe import HostRecipe


class Attention(nn.Module):
    """What :func:`open_attention` asks of fairseq's module, in whatever widths and with whatever biases a file has."""

    def __init__(self, golden: Golden, name: str, dim: int, heads: int) -> None:
        super().__init__()
        self.embed_dim = self.kdim = dim
        self.beam_size = 1
        self.num_heads, self.head_dim = heads, dim // heads
        self.scaling = self.head_dim**-0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            linear(golden, f"{name}.{part}_proj", dim, dim) for part in ("q", "k", "v", "out")
        )
        self.dropout_module = nn.Identity()
        self.edit_scores: Edit | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Run attention by :func:`open_attention`."""
        return open_attention(self, query, key, value, edit_scores=self.edit_scores, **kwargs)


class Gated(nn.Module):
    """The first matrices of a gated FFN, side by side: (..., C) -> (..., 2 F)."""

    def __init__(self, golden: Golden, name: str, dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.gate = linear(golden, f"{name}.gate", dim, ffn_dim)
        self.up = linear(golden, f"{name}.up", dim, ffn_dim)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.gate(x), self.up(x)], -1)


def swiglu(x: Tensor) -> Tensor:
    """Return the activation of a :class:`Gated` FFN in LLaMA (Shazeer 2020): (..., 2 F) -> (..., F)"""
    gate, up = x.chunk(2, -1)
    return silu(gate) * up


@dataclass(frozen=True)
class Rotary:
    """A forward hook that turns queries or keys by angles that grow with the position.

    Su et al. 2021, "RoFormer", Eq. 34; the module's output is (T, B, C) or (T, B, H, channels of a head).
    """

    head_dim: int
    style: Literal["half", "interleaved"]
    base: float = 1e4
    channels: int = 0
    """How many of each head are turned, from the first; 0: all."""
    direction: Literal[1, -1] = 1
    """-1: by the negative angles."""
    table: torch.dtype | None = None
    """What sines and cosines are rounded to."""

    def __call__(self, module: nn.Module, inputs: Any, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, self.head_dim)) if x.dim() == 3 else x
        channels = self.channels or self.head_dim
        rate = self.base ** (-torch.arange(0, channels, 2, dtype=x.dtype, device=x.device) / channels)
        angle = self.direction * torch.outer(torch.arange(len(x), dtype=x.dtype, device=x.device), rate)[:, None, None]
        cos, sin = (value.to(self.table or x.dtype).to(x.dtype) for value in (angle.cos(), angle.sin()))
        pairs, side = ((-1, 2), -1) if self.style == "interleaved" else ((2, -1), -2)
        a, b = heads[..., :channels].unflatten(-1, pairs).unbind(side)
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], side).flatten(-2)
        return torch.cat([turned, heads[..., channels:]], -1).view_as(x)


def linear(golden: Golden, name: str, in_dim: int, out_dim: int) -> nn.Linear:
    """Return a matrix with a bias if the file has one."""
    return nn.Linear(in_dim, out_dim, bias=f"{name}.bias" in golden.parameters)


def built_layers(
    golden: Golden, stack: str, activation: Callable[[Tensor], Tensor], *, cross: bool = False
) -> list[Any]:
    """Return layers with the attributes of those that fairseq builds, for :class:`Stack`."""
    dim, heads = len(golden.need(f"{stack}.0.self_attn.out_proj.weight")), golden.heads
    layers = []
    for i in range(golden.depth(stack)):
        ffn_dim = golden.need(f"{stack}.{i}.fc2.weight").size(1)
        fc1 = f"{stack}.{i}.fc1"
        gated = f"{fc1}.gate.weight" in golden.parameters
        layers.append(
            SimpleNamespace(
                self_attn=Attention(golden, f"{stack}.{i}.self_attn", dim, heads),
                encoder_attn=Attention(golden, f"{stack}.{i}.encoder_attn", dim, heads) if cross else None,
                fc1=Gated(golden, fc1, dim, ffn_dim) if gated else linear(golden, fc1, dim, ffn_dim),
                fc2=linear(golden, f"{stack}.{i}.fc2", ffn_dim, dim),
                activation_fn=activation,
                activation_dropout_module=nn.Identity(),
                dropout_module=nn.Identity(),
            )
        )
    return layers


def build_stack(
    golden: Golden,
    stack: str,
    side: Literal["encoder", "decoder"],
    activation: Callable[[Tensor], Tensor] = torch.relu,
    *,
    enc_depth: int = 0,
    dec_depth: int = 0,
) -> Stack:
    """Return the wired layers whose parameters are called ``stack.0. ...``."""
    cross = side == "decoder" and enc_depth > 0
    layers = built_layers(golden, stack, activation, cross=cross)
    shape = StackShape(
        stack=side,
        depth=len(layers),
        dim=layers[0].self_attn.embed_dim,
        ffn_dim=layers[0].fc2.in_features,
        heads=layers[0].self_attn.num_heads,
        enc_depth=enc_depth,
        dec_depth=dec_depth,
        cross=enc_depth > 0 and dec_depth > 0,
    )
    return Stack(layers, Wiring.parse(golden.wiring).build(shape), shape)


class HostModel(nn.Module):
    """A model that takes the ``in/*`` of a golden file and returns what the file holds, by name."""


class Host(HostModel):
    """A language model, or for a file without tokens and a head an encoder that is given vectors."""

    def __init__(self, golden: Golden, recipe: HostRecipe) -> None:
        super().__init__()
        self.causal = recipe.causal
        depth, decoder = golden.depth("layers"), "prev_output_tokens" in golden.inputs
        self.layers = build_stack(
            golden,
            "layers",
            "decoder" if decoder else "encoder",
            recipe.activation,
            enc_depth=0 if decoder else depth,
            dec_depth=depth if decoder else 0,
        )
        dim, new_norm = self.layers.shape.dim, self.layers.wiring.shape.new_norm
        if decoder:
            words = len(golden.need("embed_tokens.weight"))
            self.embed_tokens = nn.Embedding(words, dim)
            self.output_projection = linear(golden, "output_projection", dim, words)
            if "output_projection.weight" not in golden.parameters:
                self.output_projection.weight = self.embed_tokens.weight
        self.top_norm = new_norm() if recipe.top_norm else None
        for layer in (self.layers[i] for i in range(depth)):
            if recipe.query_key_norm:
                for name in ("q_proj", "k_proj"):
                    head = dim // self.layers.shape.heads
                    width = head if recipe.query_key_norm == "per_head" else dim
                    add_norm(layer.self_attn.get_submodule(name), new_norm(width), width)
            if recipe.rotary:
                for name in recipe.rotary_at:
                    turn = Rotary(dim // self.layers.shape.heads, recipe.rotary)
                    layer.get_submodule(name).register_forward_hook(turn)
        for surround in recipe.surroundings:
            surround(self, golden)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the model.

        Args:
            inputs: ``prev_output_tokens`` (B, T), or ``src_vectors`` (B, S, C).

        Returns:
            dec_embed, decoder_features and logits; of an encoder: encoder_out.
        """
        if "prev_output_tokens" not in inputs:
            return {"encoder_out": self._through(inputs["src_vectors"])}
        embedded = self.embed(inputs["prev_output_tokens"])
        features = self._through(embedded)
        return {"dec_embed": embedded, "decoder_features": features, "logits": self.output_projection(features)}

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, C)"""
        return self.embed_tokens(tokens)  # type: ignore[no-any-return]

    def _through(self, vectors: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)"""
        x = vectors.transpose(0, 1)
        x, _ = self.layers(x, Context(self_attn_mask=future_mask(x) if self.causal else None))
        return (x if self.top_norm is None else self.top_norm(x)).transpose(0, 1)


def future_mask(x: Tensor) -> Tensor:
    """(T, B, C) -> (T, T), -inf where a position would see a later one."""
    return torch.full((len(x), len(x)), -torch.inf, dtype=x.dtype, device=x.device).triu(1)


def add_norm(projection: nn.Module, norm: nn.Module, width: int) -> None:
    """Normalise what ``projection`` gives, (..., C), in groups of ``width`` channels, those of a head or all."""
    projection.norm = norm
    projection.register_forward_hook(lambda module, inputs, x: module.norm(x.unflatten(-1, (-1, width))).flatten(-2))

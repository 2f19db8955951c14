"""The surroundings of a golden file's wiring: a small model of this plugin's own stack."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.attention import MultiheadAttention
from fairseq_residuals.wirings.blocks.halves import open_all_attention
from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.wiring import Wiring
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.authors_rotary import AuthorsRotary

if TYPE_CHECKING:
    from tests.golden_check.hosts.host_recipe import HostRecipe


def linear(golden: Golden, name: str, in_dim: int, out_dim: int) -> nn.Linear:
    """Return a matrix with a bias if the file has one."""
    return nn.Linear(in_dim, out_dim, bias=f"{name}.bias" in golden.parameters)


def attention(golden: Golden, name: str, dim: int, heads: int) -> MultiheadAttention:
    """Return the library's attention with the biases that the file has."""
    module = MultiheadAttention(dim, heads)
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        module.set_submodule(part, linear(golden, f"{name}.{part}", dim, dim))
    return module


def built_layers(
    golden: Golden, stack: str, activation: Callable[[Tensor], Tensor], *, cross: bool = False
) -> list[Any]:
    """Return layers with the attributes of those that fairseq builds, for :class:`Stack`."""
    dim, heads = len(golden.parameters[f"{stack}.0.self_attn.out_proj.weight"]), golden.heads
    layers = []
    for i in range(golden.depth(stack)):
        ffn_dim = golden.parameters[f"{stack}.{i}.fc2.weight"].size(1)
        fc1 = f"{stack}.{i}.fc1"
        layers.append(
            SimpleNamespace(
                self_attn=attention(golden, f"{stack}.{i}.self_attn", dim, heads),
                encoder_attn=attention(golden, f"{stack}.{i}.encoder_attn", dim, heads) if cross else None,
                # twice as many rows of a gated FFN
                fc1=linear(golden, fc1, dim, len(golden.parameters[f"{fc1}.weight"])),
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
    built = Stack(layers, Wiring.parse(golden.wiring).build(shape), shape)
    open_all_attention(built)
    return built


class HostModel(nn.Module):
    """A model that takes the ``in/*`` of a golden file and returns what the file holds, by name."""


class PairHost(HostModel):
    """An encoder and a decoder."""

    def __init__(self, golden: Golden, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        depths = {"enc_depth": golden.depth("encoder"), "dec_depth": golden.depth("decoder")}
        self.encoder = build_stack(golden, "encoder", "encoder", activation, **depths)
        self.decoder = build_stack(golden, "decoder", "decoder", activation, **depths)

    def through(self, source: Tensor, padding: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """(S, B, C), (B, S), (T, B, C) -> what both stacks give, (B, S, C) and (B, T, C)."""
        memory, _ = self.encoder(source, Context(padding_mask=padding))
        masks = Context(memory=memory, memory_padding_mask=padding, self_attn_mask=future_mask(target))
        features, _ = self.decoder(target, masks)
        return memory.transpose(0, 1), features.transpose(0, 1)


class Host(HostModel):
    """A language model, or for a file without tokens and a head an encoder that is given vectors."""

    def __init__(self, golden: Golden) -> None:
        super().__init__()
        recipe: HostRecipe = golden.recipe  # type: ignore[assignment]
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
            words = len(golden.parameters["embed_tokens.weight"])
            self.embed_tokens = nn.Embedding(words, dim)
            self.output_projection = linear(golden, "output_projection", dim, words)
            if "output_projection.weight" not in golden.parameters:
                self.output_projection.weight = self.embed_tokens.weight
        self.top_norm = new_norm() if recipe.top_norm else None
        for layer in (self.layers[i] for i in range(depth)):
            if recipe.query_key_norm == "per_head":
                layer.self_attn.q_norm, layer.self_attn.k_norm = (new_norm(layer.self_attn.head_dim) for _ in range(2))
            elif recipe.query_key_norm:
                for name in ("q_proj", "k_proj"):
                    add_norm(layer.self_attn.get_submodule(name), new_norm(), dim)
            if recipe.rotary:
                layer.self_attn.rotary = AuthorsRotary(style=recipe.rotary)
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

"""The surroundings of a golden file's wiring: a small model of this plugin's own stack."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

from fairseq_residuals.core.attention import open_attention
from fairseq_residuals.core.base import StackShape, Stream
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.layer import CONNECTIONS, Context
from fairseq_residuals.core.stack import Stack
from fairseq_residuals.core.wiring import Wiring
from fairseq_residuals.models.state_dict_names import fairseq_name
from fairseq_residuals.verification.hosts.description import NewerGolden


class Attention(nn.Module):
    """What :func:`open_attention` asks of fairseq's module, in whatever widths and with whatever biases a file has."""

    def __init__(self, golden: NewerGolden, name: str, dim: int, heads: int) -> None:
        super().__init__()
        self.embed_dim = self.kdim = dim
        self.beam_size = 1
        self.num_heads, self.head_dim = heads, dim // heads
        self.scaling = self.head_dim**-0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            linear(golden, f"{name}.{part}_proj", dim, dim) for part in ("q", "k", "v", "out")
        )
        self.dropout_module = nn.Identity()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """As :func:`open_attention`."""
        return open_attention(self, query, key, value, **kwargs)


class Gated(nn.Module):
    """The first matrices of a gated FFN, side by side: (..., C) -> (..., 2 F)."""

    def __init__(self, golden: NewerGolden, name: str, dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.gate = linear(golden, f"{name}.gate", dim, ffn_dim)
        self.up = linear(golden, f"{name}.up", dim, ffn_dim)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.gate(x), self.up(x)], -1)


def swiglu(x: Tensor) -> Tensor:
    """The activation of a :class:`Gated` FFN in LLaMA (Shazeer 2020): (..., 2 F) -> (..., F)"""
    gate, up = x.chunk(2, -1)
    return silu(gate) * up


@dataclass(frozen=True)
class Rotary:
    """Su et al. 2021, "RoFormer", Eq. 34: a forward hook that turns the output of a module, queries or keys
    (T, B, C) or (T, B, H, channels of a head), by angles that grow with the position."""

    head_dim: int
    style: Literal["half", "interleaved"]
    base: float = 1e4

    def __call__(self, module: nn.Module, inputs: Any, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, self.head_dim)) if x.dim() == 3 else x
        rate = self.base ** (-torch.arange(0, self.head_dim, 2, dtype=x.dtype, device=x.device) / self.head_dim)
        angle = torch.outer(torch.arange(len(x), dtype=x.dtype, device=x.device), rate)[:, None, None]
        pairs = (-1, 2) if self.style == "interleaved" else (2, -1)
        a, b = heads.unflatten(-1, pairs).unbind(-1 if self.style == "interleaved" else -2)
        turned = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
        return torch.stack(turned, -1 if self.style == "interleaved" else -2).flatten(-2).view_as(x)


def linear(golden: NewerGolden, name: str, in_dim: int, out_dim: int) -> nn.Linear:
    """A matrix with a bias if the file has one."""
    return nn.Linear(in_dim, out_dim, bias=f"{name}.bias" in golden.parameters)


def built_layers(golden: NewerGolden, stack: str, *, cross: bool = False) -> list[Any]:
    """Layers with the attributes of those that fairseq builds, for :class:`Stack`."""
    dim = len(golden.need(f"{stack}.0.self_attn.out_proj.weight"))
    heads = golden.number("config_values", "h")
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
                activation_fn=golden.recipe.activation,
                activation_dropout_module=nn.Identity(),
                dropout_module=nn.Identity(),
            )
        )
    return layers


def build_stack(
    golden: NewerGolden, stack: str, side: Literal["encoder", "decoder"], *, enc_depth: int = 0, dec_depth: int = 0
) -> Stack:
    """The wired layers whose parameters are called ``stack.0. ...``."""
    cross = side == "decoder" and enc_depth > 0
    layers = built_layers(golden, stack, cross=cross)
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


class Host(nn.Module):
    """A language model, or for a file without tokens and a head an encoder that is given vectors."""

    def __init__(self, golden: NewerGolden) -> None:
        super().__init__()
        recipe = golden.recipe
        self.causal, self.layer_outputs = recipe.causal, recipe.layer_outputs
        depth = golden.depth()
        self.layers = build_stack(
            golden,
            "layers",
            "decoder" if recipe.causal else "encoder",
            enc_depth=0 if recipe.causal else depth,
            dec_depth=depth if recipe.causal else 0,
        )
        dim, new_norm = self.layers.shape.dim, self.layers.wiring.shape.new_norm
        if "ids" in golden.inputs:
            self.embed_tokens = nn.Embedding(len(golden.need("embed_tokens.weight")), dim)
            self.output_projection = nn.Linear(dim, self.embed_tokens.num_embeddings, bias=False)
            if "output_projection.weight" not in golden.parameters:
                self.output_projection.weight = self.embed_tokens.weight
        self.top_norm = new_norm() if recipe.top_norm else None
        for layer in (self.layers[i] for i in range(depth)):
            if recipe.query_key_norm:
                for name in ("q_proj", "k_proj"):
                    _add_norm(layer.self_attn.get_submodule(name), new_norm())
            if recipe.rotary:
                for name in recipe.rotary_at:
                    turn = Rotary(dim // self.layers.shape.heads, recipe.rotary)
                    layer.get_submodule(name).register_forward_hook(turn)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Everything that a golden file holds, under its names.

        Args:
            inputs: ``ids`` and ``target`` (B, T), or ``x`` and ``loss_weight`` (B, T, C).

        Returns:
            embed, layer{i}, final_norm, logits, sub/in{k} (what the norm of sub-layer k is given), and the loss as a
            scalar to differentiate.
        """
        x = (self.embed_tokens(inputs["ids"]) if "ids" in inputs else inputs["x"]).transpose(0, 1)
        with recorded(self.layers, self.layer_outputs) as seen:
            seen["embed"] = x.transpose(0, 1)
            x, _ = self.layers(x, Context(self_attn_mask=future_mask(x) if self.causal else None))
        x = (x if self.top_norm is None else self.top_norm(x)).transpose(0, 1)
        seen["final_norm"] = x
        if "ids" not in inputs:
            return seen | {"loss": (x * inputs["loss_weight"]).sum()}
        logits = self.output_projection(x)
        loss = cross_entropy(logits.flatten(0, 1), inputs["target"].flatten(), reduction="sum")
        return seen | {"logits": logits, "loss": loss}


def future_mask(x: Tensor) -> Tensor:
    """(T, B, C) -> (T, T), -inf where a position would see a later one."""
    return torch.full((len(x), len(x)), -torch.inf, dtype=x.dtype, device=x.device).triu(1)


def _add_norm(projection: nn.Module, norm: nn.Module) -> None:
    projection.norm = norm
    projection.register_forward_hook(lambda module, inputs, x: module.norm(x))


@contextmanager
def recorded(
    stack: Stack, layer_outputs: Callable[[Stream], dict[str, Tensor]], name: str = "layer"
) -> Iterator[dict[str, Tensor]]:
    """Collects, while ``stack`` runs, what its layers give and what the norms of its sub-layers take (B, T, C)."""
    seen: dict[str, Tensor] = {}

    def keep_layer(i: int, module: nn.Module, inputs: Any, output: Any) -> None:
        seen.update({f"{name}{i}{ending}": value for ending, value in layer_outputs(output[0]).items()})

    def keep_input(k: int, module: nn.Module, inputs: Any, output: Any) -> None:
        seen[f"sub/in{k}"] = inputs[0].transpose(0, 1)

    handles = []
    for i in range(len(stack)):
        layer = stack[i]
        handles.append(layer.register_forward_hook(partial(keep_layer, i)))
        for j, kind in enumerate(layer.kinds):
            norm = getattr(getattr(layer, CONNECTIONS[kind]), "norm", None)
            if norm is not None:
                handles.append(norm.register_forward_hook(partial(keep_input, i * len(layer.kinds) + j)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def build(golden: NewerGolden) -> nn.Module:
    """The model of a golden file, with weights of its own.

    Raises:
        UserError: the file lacks what its model is made of.
    """
    recipe = golden.recipe
    model = Host(golden) if recipe.build is None else recipe.build(golden)
    for module in model.modules():
        if recipe.eps and isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            module.eps = recipe.eps
    return model


@torch.no_grad()
def load(golden: NewerGolden, model: nn.Module) -> None:
    """Gives ``model`` the golden's weights.

    Raises:
        UserError: they are not exactly those that it has.
    """
    parameters = {fairseq_name(name): p for name, p in model.named_parameters()}
    for prefix, found in (("param", golden.parameters), ("init", golden.initial)):
        unknown = sorted(found.keys() - parameters.keys())
        if unknown:
            raise UserError(f"{golden.path} holds, unlike its model, {prefix}/{unknown[0]} (by this plugin's name)")
    for name, parameter in parameters.items():
        if name in golden.parameters:
            value = golden.parameters[name]
            if value.shape != parameter.shape:
                raise UserError(
                    f"{golden.path} has another shape of {name}, {tuple(value.shape)}, than its model,"
                    f" {tuple(parameter.shape)}"
                )
            parameter.copy_(value)
        else:
            fixed = [value for pattern, value in golden.recipe.fixed.items() if re.fullmatch(pattern, name)]
            if not fixed:
                raise UserError(f"{golden.path} lacks param/{name} (by this plugin's name)")
            parameter.fill_(fixed[0]).requires_grad_(False)

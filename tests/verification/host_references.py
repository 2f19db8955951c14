"""The newer designs once more, from the papers' equations and the authors' names alone, in sizes that no file of
tests/golden has. Nothing of the plugin is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention, sigmoid, silu, softmax

DEPTH, DIM, INNER, HEADS, WORDS, BATCH, LENGTH = 5, 24, 48, 4, 29, 3, 7
Sublayer = Callable[[Tensor], Tensor]


@dataclass
class Net:
    """Draws a parameter when it is first asked for, and keeps what is computed with them."""

    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(5))
    parameters: dict[str, Tensor] = field(default_factory=dict)
    out: dict[str, Tensor] = field(default_factory=dict)

    def vector(self, name: str, size: int = DIM, start: float = 0.0) -> Tensor:
        if name not in self.parameters:
            drawn = start + 0.1 * torch.randn(size, generator=self.generator)
            self.parameters[name] = drawn.requires_grad_()
        return self.parameters[name]

    def matrix(self, name: str, rows: int, columns: int, size: float = 1.0) -> Tensor:
        if name not in self.parameters:
            drawn = size * torch.randn(rows, columns, generator=self.generator) / columns**0.5
            self.parameters[name] = drawn.requires_grad_()
        return self.parameters[name]

    def linear(self, x: Tensor, name: str, rows: int = DIM, bias: bool = True) -> Tensor:
        y = x @ self.matrix(f"{name}.weight", rows, x.size(-1)).T
        return y + self.vector(f"{name}.bias", rows) if bias else y

    def norm(self, x: Tensor, name: str, eps: float = 1e-5, bias: bool = True) -> Tensor:
        shift = self.vector(f"{name}.bias") if bias else None
        return layer_norm(x, (DIM,), self.vector(f"{name}.weight", start=1.0), shift, eps)

    def rms(self, x: Tensor, name: str, eps: float = 1e-6) -> Tensor:
        return self.vector(f"{name}.weight", x.size(-1), start=1.0) * unit(x, eps)


def unit(x: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def turned(x: Tensor, interleaved: bool = False) -> Tensor:
    """Rotary positions as products of complex numbers: (B, H, T, channels of a head)."""
    half = x.size(-1) // 2
    angles = torch.arange(x.size(-2))[:, None] / 10000 ** (torch.arange(half) / half)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    y = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)
    return torch.stack([y.real, y.imag], -1).flatten(-2) if interleaved else torch.cat([y.real, y.imag], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, edit: Sublayer = lambda x: x, causal: bool = True) -> Tensor:
    """(B, T, C) each, before the heads are split; ``edit`` of a head's queries and keys."""
    q, k, v = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(edit(q), edit(k), v, is_causal=causal).transpose(1, 2).flatten(2)


def plain_sublayers(net: Net, i: int) -> list[Sublayer]:
    name = f"layers.{i}"

    def attention(x: Tensor) -> Tensor:
        y = attend(*(net.linear(x, f"{name}.attn.{part}") for part in "qkv"))
        return net.linear(y, f"{name}.attn.o")

    def ffn(x: Tensor) -> Tensor:
        return net.linear(net.linear(x, f"{name}.ffn.fc1", INNER).relu(), f"{name}.ffn.fc2")

    return [attention, ffn]


def llama_sublayers(
    net: Net, i: int, values: Sublayer = lambda v: v, own_values: bool = True, norms: bool = False
) -> list[Sublayer]:
    name = f"model.layers.{i}"

    def attention(x: Tensor) -> Tensor:
        q, k = (net.linear(x, f"{name}.self_attn.{part}_proj", bias=False) for part in "qk")
        if norms:
            q, k = (net.rms(y, f"{name}.self_attn.{part}_norm") for part, y in (("q", q), ("k", k)))
        v = net.linear(x, f"{name}.self_attn.v_proj", bias=False) if own_values else x
        return net.linear(attend(q, k, values(v), turned), f"{name}.self_attn.o_proj", bias=False)

    def ffn(x: Tensor) -> Tensor:
        gate, up = (net.linear(x, f"{name}.mlp.{part}_proj", INNER, bias=False) for part in ("gate", "up"))
        return net.linear(silu(gate) * up, f"{name}.mlp.down_proj", bias=False)

    return [attention, ffn]


def pre_ln(net: Net, x: Tensor, i: int, factor: float = 1.0, **kwargs: Any) -> Tensor:
    attention, ffn = llama_sublayers(net, i, **kwargs)
    x = x + attention(factor * net.rms(x, f"model.layers.{i}.input_layernorm"))
    return x + ffn(factor * net.rms(x, f"model.layers.{i}.post_attention_layernorm"))


def post_ln(net: Net, x: Tensor, i: int) -> Tensor:
    attention, ffn = llama_sublayers(net, i)
    x = net.rms(x + attention(x), f"model.layers.{i}.post_attention_layernorm")
    return net.rms(x + ffn(x), f"model.layers.{i}.post_feedforward_layernorm")


def sandwich(net: Net, x: Tensor, i: int) -> Tensor:
    attention, ffn = llama_sublayers(net, i)

    def norm(kind: str, x: Tensor) -> Tensor:
        return net.rms(x, f"model.layers.{i}.{kind}_layernorm")

    x = x + norm("post_attention", attention(norm("input", x)))
    return x + norm("post_feedforward", ffn(norm("pre_feedforward", x)))


def post_sublayer(net: Net, x: Tensor, i: int) -> Tensor:
    """With norms of all heads' queries and keys together."""
    name = f"model.layers.{i}"
    attention, ffn = llama_sublayers(net, i, norms=True)
    x = x + net.rms(attention(x), f"{name}.post_attention_layernorm")
    return x + net.rms(ffn(x), f"{name}.post_feedforward_layernorm")


def llama(net: Net, x: Tensor, layer: Callable[[Net, Tensor, int], Tensor]) -> Tensor:
    for i in range(DEPTH):
        net.out[f"layer{i}"] = x = layer(net, x, i)
    return net.rms(x, "model.norm")


def values_of_first(mix: Callable[[Tensor, Tensor], Tensor], own: bool) -> Callable[[Net, Tensor], Tensor]:
    def run(net: Net, x: Tensor) -> Tensor:
        first: list[Tensor] = []

        def values(v: Tensor) -> Tensor:
            if not first:
                first.append(v)
                return v
            return mix(first[0], v)

        return llama(net, x, lambda net, x, i: pre_ln(net, x, i, values=values, own_values=own or i == 0))

    return run


def attention_residuals(net: Net, x: Tensor, size: int) -> Tensor:
    """Groups of ``size`` sub-layers."""
    finished, partial = [x], None

    def over_depth(name: str) -> Tensor:
        sources = torch.stack(finished if partial is None else [*finished, partial])
        query = net.matrix(f"{name}.proj.weight", 1, DIM)
        return (softmax(net.rms(sources, f"{name}.norm") @ query.T, 0) * sources).sum(0)

    for i in range(DEPTH):
        for j, sublayer in enumerate(plain_sublayers(net, i)):
            h = over_depth(f"layers.{i}.{('attn', 'mlp')[j]}_res")
            net.out[f"sub/in{2 * i + j}"] = h
            y = sublayer(net.norm(h, f"layers.{i}.n{j + 1}"))
            partial = y if partial is None else partial + y
            if (2 * i + j + 1) % size == 0:
                finished, partial = [*finished, partial], None
    return net.norm(over_depth("out_res"), "norm")


def hyper_connections(net: Net, x: Tensor, n: int) -> Tensor:
    streams = x[..., None, :].expand(-1, -1, n, -1)
    for i in range(DEPTH):
        for j, sublayer in enumerate(plain_sublayers(net, i)):
            name = f"layers.{i}.hc_{('attn', 'ffn')[j]}"
            normed = net.norm(streams, f"{name}.layer_norm")
            dynamic = (normed @ net.matrix(f"{name}.dynamic_alpha_fn", DIM, n + 1)).tanh()
            alpha = (
                net.matrix(f"{name}.static_alpha", n, n + 1) + net.vector(f"{name}.dynamic_alpha_scale", 1) * dynamic
            )
            dynamic = (normed @ net.vector(f"{name}.dynamic_beta_fn")).tanh()
            beta = net.vector(f"{name}.static_beta", n, 1.0) + net.vector(f"{name}.dynamic_beta_scale", 1) * dynamic
            mixed = torch.einsum("btij,btic->btjc", alpha, streams)
            y = sublayer(net.norm(mixed[..., 0, :], f"layers.{i}.n{j + 1}"))
            streams = beta[..., None] * y[..., None, :] + mixed[..., 1:, :]
        net.out[f"layer{i}"] = streams
    return net.norm(streams.sum(-2), "norm")


def manifold_constrained(net: Net, x: Tensor, n: int) -> Tensor:
    """With DeepSeek-V4's read-out, and its 1e-6 in every sum."""
    streams = x[..., None, :].expand(-1, -1, n, -1)

    def logits(name: str, rows: int) -> Tensor:
        return unit(streams.flatten(-2), 1e-6) @ net.matrix(name, rows, n * DIM).T

    for i in range(DEPTH):
        for j, sublayer in enumerate(plain_sublayers(net, i)):
            name = f"layers.{i}.{('attn', 'ffn')[j]}_hc"
            scale, base = net.vector(f"{name}.scale", 3, 0.5), net.vector(f"{name}.base", n * n + 2 * n)
            scales = torch.cat([scale[:1].expand(n), scale[1:2].expand(n), scale[2:].expand(n * n)])
            read, write, mix = (logits(f"{name}.fn", n * n + 2 * n) * scales + base).split([n, n, n * n], -1)
            mix = softmax(mix.unflatten(-1, (n, n)), -1) + 1e-6
            for step in range(39):
                mix = mix / (mix.sum(-1 - (step + 1) % 2, keepdim=True) + 1e-6)
            h = ((sigmoid(read) + 1e-6)[..., None] * streams).sum(-2)
            y = sublayer(net.norm(h, f"layers.{i}.n{j + 1}"))
            streams = 2 * sigmoid(write)[..., None] * y[..., None, :] + mix.transpose(-1, -2) @ streams
        net.out[f"layer{i}"] = streams
    weights = sigmoid(
        logits("hc_head.hc_fn", n) * net.vector("hc_head.hc_scale", 1, 0.5) + net.vector("hc_head.hc_base", n)
    )
    return net.norm(((weights + 1e-6)[..., None] * streams).sum(-2), "norm")


def dense_former(net: Net, x: Tensor, dilation: int) -> Tensor:
    states = [x]
    for i in range(DEPTH):
        name = f"transformer.h.{i}.0"
        h = net.norm(x, f"{name}.ln_1", bias=False)
        q, k, v = net.linear(h, f"{name}.attn.c_attn", 3 * DIM, bias=False).chunk(3, -1)
        y = attend(q, k, v, lambda z: turned(z, interleaved=True))
        x = x + net.linear(y, f"{name}.attn.c_proj", bias=False)
        h = gelu(net.linear(net.norm(x, f"{name}.ln_2", bias=False), f"{name}.mlp.c_fc", 4 * DIM, bias=False))
        net.out[f"layer{i}"] = x = x + net.linear(h, f"{name}.mlp.c_proj", bias=False)
        states.append(x)
        chosen = [states[j] for j in range(i + 2) if (i + 1 - j) % dilation == 0]
        x = (net.matrix(f"weights.{i}.weight", 1, len(chosen))[0] * torch.stack(chosen, -1)).sum(-1)
    return net.norm(x, "transformer.ln_f", bias=False)


def olmo_sublayers(net: Net, i: int) -> list[Sublayer]:
    name = f"transformer.blocks.{i}"

    def attention(x: Tensor) -> Tensor:
        q, k, v = net.linear(x, f"{name}.att_proj", 3 * DIM, bias=False).chunk(3, -1)
        q, k, v = (
            net.rms(y.unflatten(-1, (HEADS, -1)), f"{name}.{part}_norm", 1e-5).flatten(-2)
            for part, y in zip("qkv", (q, k, v), strict=True)
        )
        return net.linear(attend(q, k, v, turned), f"{name}.attn_out", bias=False)

    def ffn(x: Tensor) -> Tensor:
        up, gate = net.linear(x, f"{name}.ff_proj", INNER, bias=False).chunk(2, -1)
        return net.linear(silu(gate) * up, f"{name}.ff_out", bias=False)

    return [attention, ffn]


def hybrid_norm(net: Net, x: Tensor, star: bool) -> Tensor:
    for i in range(DEPTH):
        name, (attention, ffn) = f"transformer.blocks.{i}", olmo_sublayers(net, i)
        special = star and i == 0
        x = x + attention(net.rms(x, f"{name}.attn_norm", 1e-5) if special else x)
        u = net.rms(x, f"{name}.ff_norm", 1e-5)
        net.out[f"layer{i}"] = x = (x if special else u) + ffn(u)
    return net.rms(x, "transformer.ln_f", 1e-5)


def siamese_hybrid(net: Net, x: Tensor) -> Tensor:
    y = x
    for i in range(DEPTH):
        name, (attention, ffn) = f"transformer.blocks.{i}", olmo_sublayers(net, i)
        c = sqrt(2 * (i + 1))
        z = attention(net.vector(f"{name}.c1", start=1.0) * x + net.rms(y, f"{name}.attn_y_norm", 1e-5))
        x, y = net.rms(x + z / c, f"{name}.ff_norm", 1e-5), y + z
        z = ffn(net.rms(x + net.rms(y, f"{name}.ff_y_norm", 1e-5), f"{name}.ff_input_norm", 1e-5))
        net.out[f"layer{i}.0"], net.out[f"layer{i}.1"] = x, y = x + z / c, y + z
    x, y = net.rms(x, "transformer.ln_f", 1e-5), net.rms(y, "transformer.ln_y_f", 1e-5)
    return net.rms(x + y, "transformer.ln_final_f", 1e-5)

"""Designs of 2025 and 2026 once more, as :mod:`host_references` has the others."""

from __future__ import annotations

from itertools import permutations
from math import sqrt
from typing import Any

import torch
from host_references import (
    DEPTH,
    DIM,
    HEADS,
    INNER,
    LENGTH,
    WORDS,
    Net,
    Sublayer,
    attend,
    llama_sublayers,
    plain_sublayers,
    turned,
    unit,
)
from torch import Tensor
from torch.nn.functional import gelu, sigmoid, silu, softmax

STREAMS, BLOCK, RANK, WIDTH, ACTIVE, BOUND = 4, 2, 3, 5, 1, 30.0


def dynamic_erf(net: Net, x: Tensor) -> Tensor:
    def norm(x: Tensor, name: str) -> Tensor:
        y = torch.erf(net.vector(f"{name}.alpha", 1, 0.5) * x + net.vector(f"{name}.shift", 1))
        return net.vector(f"{name}.weight", start=1.0) * y + net.vector(f"{name}.bias")

    for i in range(DEPTH):
        for j, sublayer in enumerate(plain_sublayers(net, i)):
            x = x + sublayer(norm(x, f"layers.{i}.n{j + 1}"))
        net.out[f"layer{i}"] = x
    return norm(x, "norm")


def nano_gpt_sublayers(net: Net, i: int) -> list[Sublayer]:
    name = f"transformer.h.{i}.branch"

    def attention(x: Tensor) -> Tensor:
        q, k, v = net.linear(x, f"{name}_attn.1.c_attn", 3 * DIM).chunk(3, -1)
        return net.linear(attend(q, k, v), f"{name}_attn.1.c_proj")

    def ffn(x: Tensor) -> Tensor:
        return net.linear(gelu(net.linear(x, f"{name}_mlp.1.c_fc", 4 * DIM)), f"{name}_mlp.1.c_proj")

    return [attention, ffn]


def doubly_stochastic(logits: Tensor, n: int, permuting: bool) -> Tensor:
    """(..., n! or n n) -> (..., n, n)"""
    if permuting:
        orders = list(permutations(range(n)))
        matrices = torch.stack([torch.eye(n)[list(order)] for order in orders])
        return torch.einsum("...r,rij->...ij", softmax(logits, -1), matrices)
    matrix = logits.unflatten(-1, (n, n))
    for _ in range(20):
        matrix = matrix - matrix.logsumexp(-2, keepdim=True)
        matrix = matrix - matrix.logsumexp(-1, keepdim=True)
    return matrix.exp()


def permuted_streams(net: Net, x: Tensor, permuting: bool) -> Tensor:
    n = STREAMS
    mixing = 24 if permuting else n * n
    net.out["embed"] = x = x + net.matrix("transformer.wpe.weight", 16, DIM)[:LENGTH]
    streams = x[..., None, :].expand(-1, -1, n, -1)
    for i in range(DEPTH):
        for part, sublayer in zip(("attn", "mlp"), nano_gpt_sublayers(net, i), strict=True):
            name = f"transformer.h.{i}.hc_{part}"
            z = unit(streams.flatten(-2), 0.0) * (1 + net.vector(f"{name}.norm.gamma", n * DIM))
            s_pre, s_res, s_post = (
                net.vector(f"{name}.{scale}", 1, 0.5)
                for scale in ("pre_branch_scale", "residual_scale", "h_post_scale")
            )
            dynamic = z @ net.matrix(f"{name}.dynamic_alpha_fn", n * DIM, n + mixing)
            if permuting:
                static = net.vector(f"{name}.static_alpha", n + mixing)
                pre, res = s_pre * dynamic[..., :n] + static[:n], s_res * dynamic[..., n:] + static[n:]
            else:
                static, dynamic = net.matrix(f"{name}.static_alpha", n, n + 1), dynamic.unflatten(-1, (n, n + 1))
                pre = s_pre * dynamic[..., 0] + static[:, 0]
                res = (s_res * dynamic[..., 1:] + static[:, 1:]).flatten(-2)
            post = s_post * (z @ net.matrix(f"{name}.dynamic_beta_fn", n * DIM, n)) + net.vector(
                f"{name}.static_beta", n
            )
            u = (sigmoid(pre)[..., None] * streams).sum(-2)
            y = sublayer(net.norm(u, f"transformer.h.{i}.branch_{part}.0"))
            mixed = torch.einsum("btij,btic->btjc", doubly_stochastic(res, n, permuting), streams)
            streams = 2 * sigmoid(post)[..., None] * y[..., None, :] + mixed
        net.out[f"layer{i}"] = streams.permute(0, 2, 1, 3).flatten(0, 1)
    normed = net.norm(streams, "transformer.ln_f")
    net.out["final_norm"] = normed.permute(0, 2, 1, 3).flatten(0, 1)
    return normed.sum(-2)


def each_head(net: Net, x: Tensor, name: str) -> Tensor:
    return net.rms(x.unflatten(-1, (HEADS, -1)), name).flatten(-2)


def delta(net: Net, x: Tensor, block: int) -> Tensor:
    """``block`` in layers, as coded: each source is x minus the one before; 0: each sub-layer's output."""
    sources = [] if block else [x]
    for i in range(DEPTH):
        name = f"model.layers.{i}"

        def attention(h: Tensor, name: str = f"{name}.self_attn") -> Tensor:
            q, k, v = (net.linear(h, f"{name}.{part}_proj", bias=False) for part in "qkv")
            q, k = each_head(net, q, f"{name}.q_norm"), each_head(net, k, f"{name}.k_norm")
            return net.linear(attend(q, k, v, turned), f"{name}.o_proj", bias=False)

        _, ffn = llama_sublayers(net, i)
        for part, norm, sublayer in (("attn", "input", attention), ("mlp", "post_attention", ffn)):
            h = x
            if i or part == "mlp":
                v = torch.stack(sources)
                logits = net.rms(v, f"{name}.{part}_res_norm") @ net.matrix(f"{name}.{part}_res_proj.weight", 1, DIM).T
                h = x + (softmax(logits, 0) * v).sum(0)
            y = sublayer(net.rms(h, f"{name}.{norm}_layernorm"))
            if not block:
                sources = [*sources, y]
            elif part == "attn" and i % block == 0:
                sources = [*sources, x - sources[-1] if sources else x]
            x = x + y
        net.out[f"layer{i}"] = x
    return net.rms(x, "model.norm")


def inkling(net: Net, x: Tensor) -> Tensor:
    """Blocks of two layers; the fourth layer reads queries, keys and values apart."""
    x = net.rms(x, "embed_norm")
    finished, partial = [x], None

    def over_depth(query: Tensor) -> Tensor:
        v = unit(torch.stack(finished if partial is None else [*finished, partial]), 1e-6)
        return (softmax(v @ query / sqrt(DIM), 0)[..., None] * v).sum(0)

    for i in range(DEPTH):
        name = f"layers.{i}"
        if i % BLOCK == 0 and partial is not None:
            finished, partial = [*finished, partial], None
        if i == 3:
            queries = net.matrix(f"{name}.attention_input.query", 3, DIM)
            reads = [
                net.rms(over_depth(query), f"{name}.{part}_input_layernorm")
                for part, query in zip("qkv", queries, strict=True)
            ]
        else:
            mix = over_depth(net.vector(f"{name}.attention_input.query")) if i else x
            reads = [net.rms(mix, f"{name}.input_layernorm")] * 3
        heads = attend(*(net.linear(r, f"{name}.self_attn.{part}") for part, r in zip("qkv", reads, strict=True)))
        y = net.linear(heads, f"{name}.self_attn.o")
        partial = y if partial is None else partial + y
        h = net.rms(over_depth(net.vector(f"{name}.mlp_input.query")), f"{name}.post_attention_layernorm")
        partial = partial + net.linear(net.linear(h, f"{name}.mlp.fc1", INNER).relu(), f"{name}.mlp.fc2")
        net.out[f"layer{i}"] = partial
    return net.rms(over_depth(net.vector("final_input.query")), "norm")


def coarse(x: Tensor) -> Tensor:
    """Rotary positions whose sines and cosines are bfloat16."""
    half = x.size(-1) // 2
    angles = torch.arange(x.size(-2))[:, None] / 10000 ** (torch.arange(half) / half)
    cos, sin = (f(angles).bfloat16().float() for f in (torch.cos, torch.sin))
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def multiway(net: Net, x: Tensor) -> Tensor:
    """With a wide last hidden layer, and FFNs of different widths."""
    outputs, reads = [x], [x] * 4
    for i in range(DEPTH):
        name, n = f"layers.{i}", i + 2
        norms = [f"attention_norms.{j}" for j in range(3)] if i else ["attention_norm"] * 3
        q, k, v = (
            net.linear(net.rms(read, f"{name}.{norm}"), f"{name}.attention.w{part}", bias=False)
            for part, read, norm in zip("qkv", reads, norms, strict=False)
        )
        q, k = each_head(net, q, f"{name}.attention.q_norm"), each_head(net, k, f"{name}.attention.k_norm")
        y = reads[3] + net.linear(attend(q, k, v, coarse), f"{name}.attention.wo", bias=False)
        h = net.rms(y, f"{name}.ffn_norm")
        gate, up = (net.linear(h, f"{name}.feed_forward.w{j}", INNER + 8 * i, bias=False) for j in (1, 3))
        net.out[f"layer{i}"] = x = y + net.linear(silu(gate) * up, f"{name}.feed_forward.w2", bias=False)
        outputs.append(x)
        ways = 4 if i < DEPTH - 1 else 1
        hidden = gelu(net.linear(unit(x, 1e-6), f"dynamic_dense.{i}.w1", 4 * n, bias=False))
        # as small as in the file: with larger ones the outputs grow from layer to layer
        w2 = net.matrix(f"dynamic_dense.{i}.w2.weight", ways * n, 4 * n, 0.3)
        weights = (hidden @ w2.T).unflatten(-1, (ways, n)) + net.matrix(f"dense_bs.{i}", ways, n)
        reads = list(torch.einsum("btcj,jbtd->cbtd", weights, torch.stack(outputs)))
    return net.rms(reads[0], "norm")


def as_large_as(x: Tensor, y: Tensor) -> Tensor:
    return y * (x.square().mean(-1, keepdim=True) / y.square().mean(-1, keepdim=True)).sqrt()


def gemma3n(net: Net, x: Tensor) -> Tensor:
    """Several streams, of which each layer runs on one, and adds to the others what it is given of each word."""
    ids = net.out.pop("ids")
    net.out["embed"] = x = x * sqrt(DIM)
    own = net.matrix("model.embed_tokens_per_layer.weight", WORDS, DEPTH * WIDTH)[ids] * sqrt(WIDTH)
    given = net.linear(x, "model.per_layer_model_projection", DEPTH * WIDTH, bias=False) / sqrt(DIM)
    given = net.rms(given.unflatten(-1, (DEPTH, WIDTH)), "model.per_layer_projection_norm")
    given = (given + own.unflatten(-1, (DEPTH, WIDTH))) / sqrt(2)
    others = [net.linear(x, f"model.altup_projections.{a}", bias=False) for a in range(STREAMS - 1)]
    streams = [x, *(as_large_as(x, y) for y in others)]
    for i in range(DEPTH):
        name = f"model.layers.{i}"

        def linear(y: Tensor, part: str, rows: int = DIM, name: str = name) -> Tensor:
            return net.linear(y, f"{name}.{part}", rows, bias=False)

        def norm(y: Tensor, part: str, name: str = name) -> Tensor:
            return net.rms(y, f"{name}.{part}")

        def route(y: Tensor) -> Tensor:
            return torch.tanh(linear(norm(y, "altup.router_norm") / DIM, "altup.modality_router", STREAMS))

        coefficients = linear(route(streams[ACTIVE]), "altup.prediction_coefs", STREAMS**2)
        predicted = [
            streams[a] + sum(coefficients[..., a * STREAMS + b, None] * streams[b] for b in range(STREAMS))
            for a in range(STREAMS)
        ]
        active = predicted[ACTIVE]
        u = norm(active, "input_layernorm")
        q, k = (
            turned_heads(norm(linear(u, f"self_attn.{part}_proj").unflatten(-1, (HEADS, -1)), f"self_attn.{part}_norm"))
            for part in "qk"
        )
        v = unit(linear(u, "self_attn.v_proj").unflatten(-1, (HEADS, -1)), 1e-6).transpose(1, 2)
        scores = (q @ k.transpose(-1, -2)).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
        heads = (softmax(scores, -1) @ v).transpose(1, 2).flatten(2)
        attended = active + norm(linear(heads, "self_attn.o_proj"), "post_attention_layernorm")
        laurel = linear(linear(u, "laurel.linear_left", RANK), "laurel.linear_right")
        z = (attended + u + norm(laurel, "laurel.post_laurel_norm")) / sqrt(2)
        h = norm(z, "pre_feedforward_layernorm")
        gate = gelu(linear(h, "mlp.gate_proj", INNER), approximate="tanh")
        h = linear(gate * linear(h, "mlp.up_proj", INNER), "mlp.down_proj")
        z = z + norm(h, "post_feedforward_layernorm")
        coefficients = linear(route(z), "altup.correction_coefs", STREAMS)
        streams = [predicted[a] + (1 + coefficients[..., a, None]) * (z - active) for a in range(STREAMS)]
        scaled = net.vector(f"{name}.altup.correct_output_scale") * streams[ACTIVE]
        gate = gelu(linear(scaled, "per_layer_input_gate", WIDTH), approximate="tanh")
        added = norm(linear(gate * given[:, :, i], "per_layer_projection"), "post_per_layer_input_norm")
        streams = [streams[0], *(y + added for y in streams[1:])]
        net.out[f"layer{i}"] = torch.stack(streams)
    x, *others = streams
    back = [net.linear(y, f"model.altup_unembed_projections.{a}", bias=False) for a, y in enumerate(others)]
    return net.rms(torch.stack([x, *(as_large_as(x, y) for y in back)]).mean(0), "model.norm")


def turned_heads(x: Tensor) -> Tensor:
    """(B, T, H, channels of a head) -> (B, H, T, channels of a head)"""
    return turned(x.transpose(1, 2))


NEWEST: dict[str, tuple[Any, tuple[str, str], dict[str, Any]]] = {
    "derf_preln": (dynamic_erf, ("emb", "head"), {}),
    "mhc_lite": (lambda net, x: permuted_streams(net, x, True), ("transformer.wte", ""), {"streams": STREAMS}),
    "mhc_by_mhclite_authors": (
        lambda net, x: permuted_streams(net, x, False),
        ("transformer.wte", ""),
        {"streams": STREAMS},
    ),
    "delta_attnres": (lambda net, x: delta(net, x, 0), ("model.embed_tokens", "lm_head"), {}),
    "delta_attnres_block": (
        lambda net, x: delta(net, x, BLOCK),
        ("model.embed_tokens", "lm_head"),
        {"layers_per_block": BLOCK},
    ),
    "inkling2_block_attnres": (inkling, ("emb", "head"), {"layers_per_block": BLOCK}),
    "muddformer": (multiway, ("tok_embeddings", "output"), {}),
    "laurel_altup_gemma3n": (
        gemma3n,
        ("model.embed_tokens", "lm_head"),
        {
            "altup_num_inputs": STREAMS,
            "altup_active_idx": ACTIVE,
            "laurel_rank": RANK,
            "hidden_size_per_layer_input": WIDTH,
            "final_logit_softcapping": BOUND,
        },
    ),
}
"""As ``host_golden_writer.DESIGNS``."""

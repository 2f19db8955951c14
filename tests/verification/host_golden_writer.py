"""Golden files of models that are not fairseq's.

5 layers, 24 channels, 48 in the FFN, 4 heads, 29 words, 3 x 7 positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import host_references as designs
import numpy as np
import torch
from host_references import BATCH, DEPTH, DIM, HEADS, INNER, LENGTH, WORDS, Net
from newest_references import NEWEST
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu

from tests.golden_check.archive import write

POST_LAYERS, STREAMS, GROUP = 2, 4, 4


def mix_ln(net: Net, x: Tensor, i: int) -> Tensor:
    return (designs.post_ln if i < POST_LAYERS else designs.pre_ln)(net, x, i)


def scaled(net: Net, x: Tensor, i: int) -> Tensor:
    return designs.pre_ln(net, x, i, factor=1 / sqrt(i + 1))


def layer_scale(net: Net, x: Tensor) -> Tensor:
    for i in range(DEPTH):
        for j, sublayer in enumerate(designs.plain_sublayers(net, i)):
            gain = net.vector(f"layers.{i}.gamma_{j + 1}", start=0.5)
            x = x + gain * sublayer(net.norm(x, f"layers.{i}.norm{j + 1}"))
        net.out[f"layer{i}"] = x
    return net.norm(x, "norm")


def dynamic_tanh(net: Net, x: Tensor) -> Tensor:
    def norm(x: Tensor, name: str) -> Tensor:
        y = torch.tanh(net.vector(f"{name}.alpha", 1, 0.5) * x)
        return net.vector(f"{name}.weight", start=1.0) * y + net.vector(f"{name}.bias")

    for i in range(DEPTH):
        for j, sublayer in enumerate(designs.plain_sublayers(net, i)):
            x = x + sublayer(norm(x, f"layers.{i}.norm{j + 1}"))
        net.out[f"layer{i}"] = x
    return norm(x, "norm")


def re_zero(net: Net, x: Tensor) -> Tensor:
    for i in range(DEPTH):
        name = f"layers.{i}"
        gain = net.vector(f"{name}.resweight", 1, 0.6)
        in_proj = net.matrix(f"{name}.self_attn.in_proj_weight", 3 * DIM, DIM)
        q, k, v = (x @ in_proj.T + net.vector(f"{name}.self_attn.in_proj_bias", 3 * DIM)).chunk(3, -1)
        x = x + gain * net.linear(designs.attend(q, k, v), f"{name}.self_attn.out_proj")
        x = x + gain * net.linear(net.linear(x, f"{name}.linear1", INNER).relu(), f"{name}.linear2")
        net.out[f"layer{i}"] = x.transpose(0, 1)
    return x


def siamese_deit(net: Net, x: Tensor) -> Tensor:
    norm, y = partial(net.norm, eps=1e-6), x
    for i in range(DEPTH):
        name = f"blocks.{i}"

        def attention(x: Tensor, name: str = name) -> Tensor:
            q, k, v = net.linear(x, f"{name}.attn.qkv", 3 * DIM).chunk(3, -1)
            return net.linear(designs.attend(q, k, v, causal=False), f"{name}.attn.proj")

        def ffn(x: Tensor, name: str = name) -> Tensor:
            return net.linear(gelu(net.linear(x, f"{name}.mlp.fc1", INNER)), f"{name}.mlp.fc2")

        for j, sublayer in enumerate((attention, ffn), start=1):
            x = norm(x, f"{name}.post_norm{j}")
            z = sublayer(norm(x + norm(y, f"{name}.pre_norm{j}"), f"{name}.input_norm{j}"))
            x, y = x + z / sqrt(2 * (i + 1)), y + z
        net.out[f"layer{i}.x"], net.out[f"layer{i}.y"] = x, y
    return norm(norm(x, "pre_norm") + norm(y, "post_norm"), "final_norm")


# by the name of the design: what is computed, the authors' names of the embedding and the head ("": tied), and what the
# sidecar tells
LLAMA = ("model.embed_tokens", "lm_head")
PLAIN = ("emb", "head")
OLMO = ("transformer.wte", "transformer.ff_out")
DESIGNS: dict[str, tuple[Callable[[Net, Tensor], Tensor], tuple[str, str], dict[str, Any]]] = {
    "preln_rms": (partial(designs.llama, layer=designs.pre_ln), LLAMA, {}),
    "postln_rms": (partial(designs.llama, layer=designs.post_ln), LLAMA, {}),
    "lns": (partial(designs.llama, layer=scaled), LLAMA, {}),
    "sandwich": (partial(designs.llama, layer=designs.sandwich), LLAMA, {}),
    "mixln": (partial(designs.llama, layer=mix_ln), LLAMA, {"env": {"POST_NUM": str(POST_LAYERS)}}),
    "olmo2_postsub": (partial(designs.llama, layer=designs.post_sublayer), LLAMA, {}),
    "resformer": (designs.values_of_first(lambda first, own: 0.5 * first + 0.5 * own, own=True), LLAMA, {}),
    "svformer": (designs.values_of_first(lambda first, own: first, own=False), LLAMA, {}),
    "attnres_full": (partial(designs.attention_residuals, size=1), PLAIN, {"block_size_sublayers": 1}),
    "attnres_block": (partial(designs.attention_residuals, size=GROUP), PLAIN, {"block_size_sublayers": GROUP}),
    "hc_alg2": (partial(designs.hyper_connections, n=STREAMS), PLAIN, {"streams": STREAMS}),
    "mhc_hf_dsv4": (partial(designs.manifold_constrained, n=STREAMS), PLAIN, {"streams": STREAMS}),
    "layerscale": (layer_scale, PLAIN, {}),
    "dyt_preln": (dynamic_tanh, PLAIN, {}),
    "rezero": (re_zero, PLAIN, {}),
    "denseformer": (partial(designs.dense_former, dilation=1), ("transformer.wte", ""), {"dilation": 1, "period": 1}),
    "denseformer_dil2": (
        partial(designs.dense_former, dilation=2),
        ("transformer.wte", ""),
        {"dilation": 2, "period": 1},
    ),
    "hybridnorm": (partial(designs.hybrid_norm, star=False), OLMO, {}),
    "hybridnorm_star": (partial(designs.hybrid_norm, star=True), OLMO, {}),
    "siamesenorm_hybrid_pre": (designs.siamese_hybrid, OLMO, {}),
    "siamesenorm_deit": (siamese_deit, ("", ""), {}),
    **NEWEST,
}


def write_host_golden(folder: Path, name: str) -> Path:
    """A golden file of the design ``name``, with its sidecar."""
    run, (embedding, head), told = DESIGNS[name]
    net = Net()
    if embedding:
        ids, target = torch.randint(WORDS, (2, BATCH, LENGTH), generator=net.generator)
        inputs = {"ids": ids, "target": target}
        words = net.matrix(f"{embedding}.weight", WORDS, DIM)
        x = words[ids]
        net.out |= {"embed": x, "ids": ids}
        final = run(net, x)
        net.out.pop("ids", None)
        logits = final @ (net.matrix(f"{head}.weight", WORDS, DIM) if head else words).T
        if bound := told.get("final_logit_softcapping"):
            logits = bound * torch.tanh(logits / bound)
        loss = cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
        net.out |= {"logits": logits}
    else:
        x, weight = torch.randn(2, BATCH, LENGTH, DIM, generator=net.generator)
        inputs = {"x": x, "loss_weight": weight}
        final = run(net, x)
        loss = (final * weight).sum()
    loss.backward()
    outputs = {"final_norm": final} | net.out | {"loss": loss}
    arrays = {f"in/{key}": value for key, value in inputs.items()}
    arrays |= {key if key.startswith("sub/") else f"out/{key}": value.detach() for key, value in outputs.items()}
    for key, value in net.parameters.items():
        arrays[f"param/{key}"], arrays[f"grad/{key}"] = value.detach(), value.grad
    encoder = "in/x" in arrays
    renames = RENAMES + (ENCODER if encoder else DECODER)
    named = {_renamed(key, renames): value.numpy() for key, value in arrays.items()}
    if name in ("mhc_lite", "mhc_by_mhclite_authors"):  # their streams are sentences of their own
        named["out/dec_top_norm"] = named.pop("out/decoder_features")
        named = {key: _streams_apart(x, told["streams"]) if EACH.fullmatch(key) else x for key, x in named.items()}
    if name == "laurel_altup_gemma3n":  # its first axis is that of streams
        named = {key: np.moveaxis(x, 0, 2) if EACH.fullmatch(key) and x.ndim == 4 else x for key, x in named.items()}
    if name == "rezero":  # its first axis is time
        named = {key: x.swapaxes(0, 1) if VECTORS.fullmatch(key) and x.ndim == 3 else x for key, x in named.items()}
    path = folder / f"{name}_H.npz"
    described = {"variant": name, "sizes": {"heads": HEADS}, "provenance": told, "pad": None}
    write(path, named, described | {"loss": "weighted" if encoder else "nll"})
    return path


RENAMES = (
    (r"in/ids", "in/prev_output_tokens"),
    (r"in/x", "in/src_vectors"),
    (r"out/embed", "out/dec_embed"),
    (r"out/loss", "loss/train"),
)
ENCODER = (
    (r"out/layer(\d+)\.y", r"out/enc_layer\1_y"),
    (r"out/layer(\d+)(?:\.x)?(.*)", r"out/enc_layer\1\2"),
    (r"out/final_norm", "out/encoder_out"),
)
DECODER = (
    (r"out/layer(\d+)\.[y1]", r"out/dec_layer\1_y"),
    (r"out/layer(\d+)\.lane1", r"out/dec_layer\1_b"),
    (r"out/layer(\d+)(?:\.(?:[x0]|lane0))?(.*)", r"out/dec_layer\1\2"),
    (r"out/final_norm", "out/decoder_features"),
    (r"sub/in(\d+)", r"out/dec_sublayer\1_in"),
)
"""Names of the references, and those of golden files."""
EACH = re.compile(r"out/\w+_(layer\d+|top_norm)")
VECTORS = re.compile(r"in/(src_vectors|loss_weight)|out/\w+_layer\d+")


def _renamed(name: str, renames: tuple[tuple[str, str], ...]) -> str:
    for old, new in renames:
        if match := re.fullmatch(old, name):
            return match.expand(new)
    return name


def _streams_apart(array: np.ndarray, n: int) -> np.ndarray:
    """(B n, T, C) -> (B, T, n, C)"""
    return array.reshape(-1, n, *array.shape[1:]).swapaxes(1, 2)

"""Reads golden files of depth-wise LSTMs built from the modules of anoidgit/transformer ("Neutron").

Its conventions, and how they are carried into fairseq's:

* words 0 (padding) and 1 (start) are called 1 and 0 here, in tokens, embeddings and logits;
* a sentence is started by a word of its own: a token of the batch like any other;
* position p, from 0, has sin and cos of p / 10000^(k / d) side by side for each even k;
* attention has no biases: here they are zero; the classifier has one: see ``rebuild``;
* queries, keys and values of self-attention are one matrix, keys and values of cross-attention another.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from fairseq_residuals.core.layer import CONNECTIONS, FAIRSEQ_NORMS
from fairseq_residuals.verification.golden_file import Arrays, Golden, Sizes, flat_activations

LONGEST = 1024
_SELF, _CROSS = CONNECTIONS["self"], CONNECTIONS["cross"]
_PLACES = (
    (r"^enc\.", "encoder."),
    (r"^dec\.", "decoder."),
    (r"\.wemb\.", ".embed_tokens."),
    (r"\.cls\.", ".output_projection."),
    (r"\.out\.", ".layer_norm."),
    (r"\.(?:attn|sa)\.(\d+)\.", r".layers.\1.self_attn."),
    (r"\.ca\.(\d+)\.", r".layers.\1.encoder_attn."),
    (r"\.outer\.", ".out_proj."),
    (r"^(encoder|decoder)\.ln1?\.(\d+)\.", rf"\1.layers.\2.{FAIRSEQ_NORMS['self']}."),
    (r"^decoder\.ln2\.(\d+)\.", rf"decoder.layers.\1.{FAIRSEQ_NORMS['cross']}."),
    (r"^encoder\.(gate|hid)\.(\d+)\.", rf"encoder.layers.\2.{_SELF}.\1."),
    (r"^decoder\.(gate|hid)\.(\d+)\.", rf"decoder.layers.\2.{_CROSS}.\1."),
    (r"\.mg\.(\d+)\.", rf".layers.\1.{_CROSS}.merge."),
    (r"\.gate\.ln\.", ".unit.gates.norms."),
    (r"\.hid\.w1\.", ".unit.hidden.0."),
    (r"\.hid\.ln\.", ".unit.hidden.1."),
    (r"\.hid\.w2\.", ".unit.hidden.4."),
)
_PARTS = {"adaptor": "qkv", "query_adaptor": "q", "kv_adaptor": "kv"}
_GATE = re.compile(r"^(.*\.)gate\.w\.[012]\.(weight|bias)$")


def read_neutron(arrays: Arrays, sizes: Sizes) -> Golden:
    """
    Raises:
        UserError: an array is missing.
    """
    parameters = _translate(arrays.under("param/"))
    no_biases = {
        name.replace(".weight", ".bias"): torch.zeros(len(weight))
        for name, weight in parameters.items()
        if re.search(r"attn\.\w+_proj\.weight$", name)
    }
    logits = _swap(arrays.need("logits"), -1)
    return Golden(
        path=arrays.path,
        sizes=sizes,
        parameters=parameters | no_biases,
        gradients=_translate(arrays.under("grad/")),
        src_tokens=_rename_words(arrays.need("src_tokens")),
        src_lengths=arrays.need("src_lengths"),
        prev_output_tokens=_rename_words(arrays.need("prev_output_tokens")),
        target=_rename_words(arrays.need("target")),
        activations=flat_activations(arrays),
        logits={"evaluation": logits, "training": logits},
        losses={"train": arrays.need("loss").item()},
        smoothing="fairseq-0.9",
        positions=_sinusoids(sizes.dim),
        constant=frozenset(no_biases),
    )


def _translate(values: dict[str, Tensor]) -> dict[str, Tensor]:
    translated: dict[str, Tensor] = {}
    gates: dict[str, list[Tensor]] = {}
    for name, value in sorted(values.items()):
        for pattern, replacement in _PLACES:
            name = re.sub(pattern, replacement, name)
        place, _, last = name.removesuffix(".weight").rpartition(".")
        if gate := _GATE.match(name):
            gates.setdefault(f"{gate[1]}unit.gates.linear.{gate[2]}", []).append(value)
        elif last in _PARTS:
            for part, rows in zip(_PARTS[last], value.chunk(len(_PARTS[last])), strict=True):
                translated[f"{place}.{part}_proj.weight"] = rows
        else:
            translated[name] = _swap(value, 0) if last == "embed_tokens" or ".output_projection." in name else value
    # sorted by name, the three gates are in their order
    return translated | {name: torch.cat(g) for name, g in gates.items()}


def _swap(values: Tensor, dim: int) -> Tensor:
    """With the first two entries along ``dim`` exchanged."""
    order = torch.arange(values.size(dim))
    order[:2] = torch.tensor([1, 0])
    return values.index_select(dim, order)


def _rename_words(tokens: Tensor) -> Tensor:
    return torch.where(tokens < 2, 1 - tokens, tokens)


def _sinusoids(dim: int) -> Tensor:
    """(positions, C)"""
    rates = 10000 ** -(torch.arange(0, dim, 2) / dim)
    angles = torch.arange(LONGEST).unsqueeze(-1) * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)

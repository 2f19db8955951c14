"""Golden files of depth-wise LSTMs built from the modules of anoidgit/transformer ("Neutron").

Its conventions, and how they are carried into fairseq's:

* words 0 (padding) and 1 (start) are called 1 and 0 here, in tokens, embeddings and logits;
* a sentence is started by a word of its own: a token of the batch like any other;
* position p, from 0, has sin and cos of p / 10000^(k / d) side by side for each even k;
* attention has no biases: here they are zero; the classifier has one: see ``fairseq_models``;
* queries, keys and values of self-attention are one matrix, keys and values of cross-attention another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.core.layer import CONNECTIONS, FAIRSEQ_NORMS
from tests.golden_check.fairseq_recipes import FairseqRecipe
from tests.golden_check.fixtures import Golden

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


def _by_our_names(values: Values) -> Values:
    translated: Values = {}
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


NEUTRON = Authors("anoidgit/transformer", _by_our_names)


@dataclass(frozen=True)
class NeutronRecipe(FairseqRecipe):
    """How to build models of these conventions."""

    fixed: Mapping[str, float] = field(default_factory=lambda: {r".*attn\.\w+_proj\.bias": 0.0}, kw_only=True)

    def authors_of(self, description: dict[str, Any]) -> Authors:
        return NEUTRON

    def adapt(self, golden: Golden) -> Golden:
        tokens = {name: x for name, x in golden.inputs.items() if x.dtype == torch.int64 and x.dim() == 2}
        return replace(
            golden,
            pad=1,
            inputs=golden.inputs | {name: torch.where(x < 2, 1 - x, x) for name, x in tokens.items()},
            logits={mode: _swap(logits, -1) for mode, logits in golden.logits.items()},
        )

    def build(self, golden: Golden) -> nn.Module:
        model: Any = super().build(golden)
        for side in (model.encoder, model.decoder):
            positions = interleaved_sinusoids(side.embed_tokens.embedding_dim)
            before = positions.new_zeros(side.padding_idx + 1, positions.size(1))
            side.embed_positions.weights = torch.cat([before, positions])
        return model


def _swap(values: Tensor, dim: int) -> Tensor:
    """Return a tensor with the first two entries along ``dim`` exchanged."""
    order = torch.arange(values.size(dim))
    order[:2] = torch.tensor([1, 0])
    return values.index_select(dim, order)


def interleaved_sinusoids(dim: int) -> Tensor:
    """Return a table of positions (positions, C) with sine and cosine side by side."""
    rates = 10000 ** -(torch.arange(0, dim, 2) / dim)
    angles = torch.arange(LONGEST).unsqueeze(-1) * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)

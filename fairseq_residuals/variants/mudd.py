"""MUDDFormer: queries, keys, values and residual of a layer are dense mixes of all layers below, per position.

::

    X_0..X_l ─┬─ mix_q ─► LN ─► q ─┐
              ├─ mix_k ─► LN ─► k ─┼─► SA ─► + ─► y ─► FFN as in Pre-LN ─► X_{l+1}
              ├─ mix_v ─► LN ─► v ─┘         │
              └─ mix_r ──────────────────────┘                     output: LN(mix of all)

Xiao et al. 2025, "MUDDFormer: Breaking Residual Bottlenecks in Transformers via Multiway Dynamic Dense Connections":
mix_c = Σ_j (w_cj + b_cj) X_j with w = W2 gelu(W1 RMS(X_l)) of the newest output, no gain and eps 1e-6; X_0 is the
embedding, which all four are in the first layer. Checked against Caiyun-AI/MUDDFormer@fc067b2
(``modeling_muddformer.py``).

W1 starts at N(0, 1/C), W2 at 0, b at (0, ..., 0, 1), as in the authors' training code (their PyTorch class, for
inference, draws b): so it starts as Pre-LN. ``expand_last`` makes the last hidden layer four times as wide, as theirs
was. Not here: FFNs that grow with depth, and the form with norms on every X_j that the same code also has. Ours: each
stack by itself; cross-attention's queries and the FFN read the running sum.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.core.config import option
from fairseq_residuals.core.depth_mixing import history
from fairseq_residuals.core.registry import register_variant
from fairseq_residuals.variants._dense_mix import dense_mixes
from fairseq_residuals.variants.pre_ln import PreLNConnection

READS = ("q", "k", "v")


class ThreeReads(PreLNConnection):
    """Feed self-attention three mixes, of which "norm" and "k_norm", "v_norm" make queries, keys and values.

    Stream: "q", "k", "v" (T, B, C) above the first layer; they become "key" and "value" of attention.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.k_norm, self.v_norm = site.new_norm(), site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        rest = {name: x for name, x in s.items() if name not in READS}
        return self.norm(s["q"]), rest | {"key": self.k_norm(s["k"]), "value": self.v_norm(s["v"])}

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        rest = {name: x for name, x in s.items() if name not in ("key", "value")}
        # an edit opens attention: fairseq's module makes keys and values of self-attention from the queries' input
        kwargs.setdefault("edit_query", _unchanged)
        return super().attend(attn, query, key, value, rest, **kwargs)


def _unchanged(x: Tensor) -> Tensor:
    return x


@register_variant("mudd")
class MUDD(Variant):
    """Stream: "output0", "output1", ... (T, B, C), X_0, X_1, ...; "x" is mix_r, and the sum from it on."""

    title = "MUDDFormer"
    paper = (
        "Xiao et al. 2025, MUDDFormer: Breaking Residual Bottlenecks in Transformers via Multiway Dynamic Dense"
        " Connections"
    )
    year = 2025
    equations = (
        "start: X[0] = x",
        "SA, l > 1: F with k = k_proj(LN_k(mix[1])), v = v_proj(LN_v(mix[2]))",
        "SA, l > 1: x = x + F(LN(mix[0]))",
        "else: x = x + F(LN(x))",
        "after each layer: X[l] = x; w = w2[l-1](gelu(w1[l-1](RMS(x))))",
        "after each layer, l < L: mix[c] = sum_{j=0..l} (part(w, c (l + 1) + j, 4 (l + 1)) + bias[l-1,c,j]) X[j]"
        " for c = 0..3",
        "after each layer, l < L: x = mix[3]",
        "after each layer, l = L: x = sum_{j=0..l} (part(w, j, l + 1) + bias[l-1,0,j]) X[j]",
        "output LN(x)",
    )
    starts_as = "pre_ln"
    code = "Caiyun-AI/MUDDFormer@fc067b2"
    verified = "authors' code, decoder: activations, gradients; cross-attention: none"
    ships_in = "MUDDPythia, MUDDFormer-2.8B"
    extension = "Each stack mixes its own layers; cross-attention and the FFN read the running sum."

    @dataclass(frozen=True)
    class Config(Variant.Config):
        expand_last: bool = option(False, "a hidden layer four times as wide for the output's mix")

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        top = 4 if config.expand_last else 1
        # after layer l, from 1: l + 1 outputs
        sizes = [(4, n, 4 * n) for n in range(2, shape.depth + 1)] + [(1, shape.depth + 1, top * (shape.depth + 1))]
        self.w1 = nn.ParameterList(torch.randn(hidden, shape.dim) * shape.dim**-0.5 for _, _, hidden in sizes)
        self.w2 = nn.ParameterList(torch.zeros(ways * n, hidden) for ways, n, hidden in sizes)
        self.bias = nn.ParameterList(torch.eye(n)[-1:].repeat(ways, 1) for ways, n, _ in sizes)
        self.norm = shape.new_norm()

    def connect(self, site: Site) -> Connection:
        return ThreeReads(site) if site.kind == "self" and site.layer else PreLNConnection(site)

    def open(self, x: Tensor) -> Stream:
        return {"x": x, "output0": x}

    def after_layer(self, i: int, s: Stream) -> Stream:
        s = s | {f"output{i + 1}": s["x"]}
        outputs = history(s, "output", range(i + 2))
        *reads, residual = dense_mixes(outputs, self.w1[i], self.w2[i], self.bias[i])
        return s | dict(zip(READS, reads, strict=False)) | {"x": residual}

    def close(self, s: Stream) -> Tensor:
        return self.norm(s["x"])

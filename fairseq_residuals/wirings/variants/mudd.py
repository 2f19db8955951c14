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
inference, draws b): so it starts as Pre-LN. ``form=pre_post_norm`` is of their later training configurations (its code,
``jax/MaxText/layers/models.py``, was read and not run): each X_j is mixed after a norm, RMS(X_l) has a gain, and mixes,
b = 0 at first, are added to X_l, mix_r under a norm whose gain starts at 0.001. ``expand_last`` makes the last hidden
layer four times as wide, ``round_hidden`` all a multiple of 64, as theirs were. Not here: FFNs that grow with depth.

Ours: each stack by itself; the FFN and cross-attention's queries read the running sum, or with ``cross_query`` these a
fifth mix. That has nothing of the layer's own self-attention, so with it the wiring does not start as Pre-LN.
"""

from dataclasses import dataclass
from typing import Literal

from fairseq_residuals.wirings.core.base import Connection, Site, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants._dense_mixes import DenseMixes
from fairseq_residuals.wirings.variants._mixed_reads import MixedQuery, ThreeReads
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection


@register_variant("mudd")
class MUDD(DenseMixes):
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
    rewrites = (
        ("cross_query", True, "start: X", "where ways = 4\ndecoder, pair: where ways = 5\nstart: X"),
        ("cross_query", True, "else:", "else, CA, l > 1: x = x + F(LN(mix[4]))\nelse:"),
        ("cross_query", True, "4 (l", "ways (l"),
        ("cross_query", True, "0..3", "0..ways-1"),
        ("form", "pre_post_norm", "X[0] = x", "X[0] = LN[0](x)"),
        ("form", "pre_post_norm", "X[l] = x;", "y = x; X[l] = LN[l](x);"),
        ("form", "pre_post_norm", "RMS(x)", "router_gain[l-1] * RMS(x)"),
        ("form", "pre_post_norm", "(mix[", "(y + mix["),
        ("form", "pre_post_norm", "x = mix[3]", "x = y + LN_post[l-1](mix[3])"),
        (
            "form",
            "pre_post_norm",
            "x = sum_{j=0..l} (part(w, j, l + 1) + bias[l-1,0,j]) X[j]",
            "x = y + LN_post[l-1](sum_{j=0..l} (part(w, j, l + 1) + bias[l-1,0,j]) X[j])",
        ),
    )
    starts_as = "pre_ln"
    code = "Caiyun-AI/MUDDFormer@fc067b2"
    verified = "authors' code, decoder, plain: activations, gradients; cross-attention, pre_post_norm: none"
    ships_in = "MUDDPythia, MUDDFormer-2.8B"
    extension = "Each stack mixes its own layers; cross-attention and the FFN read the running sum."

    @dataclass(frozen=True)
    class Config(Variant.Config):
        form: Literal["plain", "pre_post_norm"] = option(
            "plain", "pre_post_norm: the later one, with norms around mixes"
        )
        cross_query: bool = option(False, "a fifth mix for the queries of cross-attention, where there is one")
        expand_last: bool = option(False, "a hidden layer four times as wide for the output's mix")
        round_hidden: bool = option(False, "hidden layers of the next larger multiple of 64")

    def connect(self, site: Site) -> Connection:
        if site.layer and site.kind == "self":
            return ThreeReads(site)
        return MixedQuery(site) if site.layer and site.kind == "cross" and self.ways == 5 else PreLNConnection(site)

"""MUDDFormer: queries, keys, values and residual of a layer are dense mixes of all layers below, per position.

::

    X_0..X_l ─┬─ mix_q ─► LN ─► q ─┐
              ├─ mix_k ─► LN ─► k ─┼─► SA ─► + ─► y ─► FFN as in Pre-LN ─► X_{l+1}
              ├─ mix_v ─► LN ─► v ─┘         │
              └─ mix_r ──────────────────────┘                     output: LN(mix of all)

Xiao et al. 2025: mix_c = Σ_j (w_cj + b_cj) X_j with w = W2 gelu(W1 RMS(X_l)) of the newest output, no gain and eps
1e-6; X_0 is the embedding, which all four are in the first layer. Checked against Caiyun-AI/MUDDFormer@fc067b2
(``modeling_muddformer.py``).

W1 starts at N(0, 1/C), W2 at 0, b at (0, ..., 0, 1), as in the authors' training code (their PyTorch class, for
inference, draws b): so it starts as Pre-LN. ``form=pre_post_norm`` is of their later training configurations (its code,
``jax/MaxText/layers/models.py``, was read and not run): each X_j is mixed after a norm, RMS(X_l) has a gain, and mixes,
b = 0 at first, are added to X_l, mix_r under a norm whose gain starts at 0.001. ``expand_last`` makes the last hidden
layer four times as wide, ``round_hidden`` all a multiple of 64, as theirs were. Not here: FFNs that grow with depth.

Ours: each stack by itself; the FFN and cross-attention's queries read the running sum.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.ops.depth_sum import weighted_sum
from fairseq_residuals.wirings.ops.rms_linear import rms_linear
from fairseq_residuals.wirings.utils.precision import at_least_fp32, without_autocast
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection

MIX_EPS = 1e-6
MIXES = ("q", "k", "v", "x")
"""The mixes' names in the stream: x is the residual."""
POST_GAIN = 0.001
"""The start of the gains of the norms under which residuals are added."""


def sizes_of_mixes(depth: int, last: int, multiple: int) -> list[tuple[int, int, int]]:
    """Return for each layer of a stack the mixes above it, what they mix, and the width of the hidden layer.

    Args:
        depth: layers of the stack, above whose last one there is one mix.
        last: factor on the width of the hidden layer above the last layer.
        multiple: number to whose next larger multiple all widths go up; 1: they are the numbers of weights.
    """
    ways = len(MIXES)
    mixes = [(ways, n, ways * n) for n in range(2, depth + 1)] + [(1, depth + 1, last * (depth + 1))]
    return [(c, n, (hidden // multiple + 1) * multiple if multiple > 1 else hidden) for c, n, hidden in mixes]


def dense_mixes(x: Tensor, outputs: list[Tensor], w1: Tensor, w2: Tensor, bias: Tensor, eps: float) -> list[Tensor]:
    """Return a mix (T, B, C) for each of several ways; weights are computed in single precision at least.

    Args:
        x: (T, B, C), of which the weights are computed.
        outputs: n tensors (T, B, C), which are mixed.
        w1: (H, C).
        w2: (ways n, H), those of one way side by side.
        bias: (ways, n).
        eps: eps of the norm of x.
    """
    hidden = gelu(rms_linear(x, w1, centred=False, eps=eps))
    dynamic = torch.tensordot(at_least_fp32(w2), hidden, 1).unflatten(0, bias.shape)
    weights = (dynamic + at_least_fp32(bias)[:, :, None, None]).to(outputs[0].dtype).unsqueeze(-1)
    return [weighted_sum(way, outputs) for way in weights.unbind()]


class ThreeReads(PreLNConnection):
    """Feed self-attention three mixes, of which "norm" and "k_norm", "v_norm" make queries, keys and values.

    Stream: "q", "k", "v" (T, B, C) above the first layer; attention gets "key" and "value".
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.k_norm, self.v_norm = site.new_norm(), site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return self.norm(s["q"]), s | {"key": self.k_norm(s["k"]), "value": self.v_norm(s["v"])}

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        rest = {name: x for name, x in s.items() if name not in ("key", "value")}
        # an edit opens attention: fairseq's module makes keys and values of self-attention from the queries' input
        kwargs.setdefault("edit_query", lambda q: q)
        return super().attend(attn, query, key, value, rest, **kwargs)


@register_variant("mudd")
class MUDD(Variant):
    """Stream: "output0", "output1", ... (T, B, C), what is mixed; "q", "k", "v" as the connection says."""

    title = "MUDDFormer"
    paper = (
        "Xiao et al. 2025, MUDDFormer: Breaking Residual Bottlenecks in Transformers via Multiway Dynamic Dense"
        " Connections"
    )
    year = 2025
    starts_as = "pre_ln"
    code = "Caiyun-AI/MUDDFormer@fc067b2"
    verified = "authors' code, decoder, plain: activations, gradients; cross-attention, pre_post_norm: none"
    ships_in = "MUDDPythia, MUDDFormer-2.8B"
    extension = "Each stack mixes its own layers; cross-attention and the FFN read the running sum."

    @dataclass(frozen=True)
    class Config(Variant.Config):
        former = ("cross_query=false",)
        form: Literal["plain", "pre_post_norm"] = option(
            "plain", "pre_post_norm: the later one, with norms around mixes"
        )
        expand_last: bool = option(False, "a hidden layer four times as wide for the output's mix")
        round_hidden: bool = option(False, "hidden layers of the next larger multiple of 64")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        normed = o.form == "pre_post_norm"
        mix = [f"(y + mix[{c}])" if normed else f"(mix[{c}])" for c in range(4)]
        output = "sum_{j=0..l} (part(w, j, l + 1) + bias[l-1,0,j]) X[j]"
        router, new = ("router_gain[l-1] * RMS(x)", "y = x; X[l] = LN[l](x)") if normed else ("RMS(x)", "X[l] = x")
        return (
            f"start: X[0] = {'LN[0](x)' if normed else 'x'}",
            f"SA, l > 1: F with k = k_proj(LN_k{mix[1]}), v = v_proj(LN_v{mix[2]})",
            f"SA, l > 1: x = x + F(LN{mix[0]})",
            "else: x = x + F(LN(x))",
            f"after each layer: {new}; w = w2[l-1](gelu(w1[l-1]({router})))",
            "after each layer, l < L: mix[c] = sum_{j=0..l} (part(w, c (l + 1) + j, 4 (l + 1)) + bias[l-1,c,j])"
            " X[j] for c = 0..3",
            f"after each layer, l < L: x = {'y + LN_post[l-1](mix[3])' if normed else 'mix[3]'}",
            f"after each layer, l = L: x = {f'y + LN_post[l-1]({output})' if normed else output}",
            "output LN(x)",
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        sizes = sizes_of_mixes(shape.depth, 4 if config.expand_last else 1, 64 if config.round_hidden else 1)
        normed = config.form == "pre_post_norm"
        self.w1 = nn.ParameterList(torch.randn(hidden, shape.dim) * shape.dim**-0.5 for _, _, hidden in sizes)
        self.w2 = nn.ParameterList(torch.zeros(ways * n, hidden) for ways, n, hidden in sizes)
        newest = 0.0 if normed else 1.0
        self.bias = nn.ParameterList(newest * torch.eye(n)[-1:].repeat(ways, 1) for ways, n, _ in sizes)
        self.norms = nn.ModuleList(shape.new_norm() for _ in range(shape.depth + 1) if normed)
        self.router_gain = nn.ParameterList(torch.ones(shape.dim) for _ in sizes if normed)
        self.post_norms = nn.ModuleList(shape.new_norm(gain=POST_GAIN) for _ in sizes if normed)
        self.norm = shape.new_norm()

    def connect(self, site: Site) -> Connection:
        return (ThreeReads if site.layer and site.kind == "self" else PreLNConnection)(site)

    def open(self, x: Tensor) -> Stream:
        return {"x": x, "output0": self.norms[0](x) if self.norms else x}

    def after_layer(self, i: int, s: Stream) -> Stream:
        x = s["x"]
        s = s | {f"output{i + 1}": self.norms[i + 1](x) if self.norms else x}
        w1 = self.w1[i] * self.router_gain[i] if self.norms else self.w1[i]
        outputs, eps = [s[f"output{k}"] for k in range(i + 2)], self.shape.eps(MIX_EPS)
        with without_autocast(x):
            mixes = dense_mixes(x, outputs, w1, self.w2[i], self.bias[i], eps)
        named = dict(zip(MIXES if len(mixes) > 1 else ("x",), mixes, strict=True))
        if self.norms:
            named["x"] = self.post_norms[i](named["x"])
            named = {name: x + mix for name, mix in named.items()}
        return s | named

"""Attention Residuals: instead of the sum of all that is below, a softmax over depth of it.

::

    v_0 ──┐
    v_1 ──┼─► Σ_i a_i v_i ─► LN ─► F ─► v_{k+1}          a = softmax_i(w_k · RMSNorm_k(v_i))
    v_k ──┘

Kimi Team 2026, "Attention Residuals", Eq. 2 to 6: v_0 is the embedding, v_{k+1} the output of sub-layer k, and nothing
is added to anything. The logits are not scaled, the values not normalised; a last softmax over all sources makes the
stack's output, under the norm on top. With ``block=S`` (Block Attention Residuals) S consecutive sub-layers are one
source, their sum; inside a block the sum so far is the last source. ``block=1`` is the same as no blocks, whose cost
grows with the square of the depth. w starts at 0: h is Pre-LN's sum over the number of its terms, which the norm takes
out again (but DyT does not), so the model starts as Pre-LN up to the norms' eps.

No code was published but pseudo-code. Checked against fla-org/flash-linear-attention@bc3b101
(``fla/ops/attnres/naive.py``), from which the gain of the keys' RMSNorm and its eps are.

Inkling-2 of Thinking Machines (huggingface/transformers 5.23.0, ``inkling2``) is ``block=12,values=normed,scale=true``:
sources are normalized without a gain, also as values, and logits divided by sqrt(C). w = 0 then gives the mean of
vectors of equal length, which is not Pre-LN. Its layers of full attention have three queries, one for each of q, k, v.
Kimi K3 (moonshotai/Kimi-K3, ``modeling_kimi_linear.py``) is ``block=24,norm=rms,norm_eps=1e-5``: its configuration says
12, for it counts layers. ``heads=H`` is MHAR (Luo et al. 2026, 2607.27230): each of H groups of channels has a softmax
over depth of its own, of sums over the group; the norm of the keys is still over all channels.

Ours: the variance of h falls with the number of sources, at the start of 24 layers to 0.01; the norms on it have eps
1e-6 instead of LayerNorm's 1e-5, which is 2e-4 from Pre-LN's output there, instead of 2e-3. The first sub-layer has one
source, whose weight is 1 whatever the logit: it has neither w nor a gain, as no gradient would reach them. Each stack
has sources of its own, and cross-attention is one more sub-layer.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import MOST_LAYERS, option
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.ops.depth_sum import softmax_sum, weighted_sum
from fairseq_residuals.wirings.utils.precision import at_least_fp32, without_autocast

KEY_EPS = 1e-6


def sources_of(s: Stream) -> list[Tensor]:
    """Return what can be added up: "source0", "source1", ... of a stream, each (T, B, C)."""
    return [value for key, value in s.items() if key.startswith("source")]


class SoftmaxOverDepth(nn.Module):
    """Add up all sources of the stream, weighted by a softmax, which is in single precision at least."""

    def __init__(
        self, width: int, normed: bool = False, scale: bool = False, eps: float = KEY_EPS, heads: int = 1
    ) -> None:
        """Make the query.

        Args:
            normed: whether what is added up is normalized too; the norm then has no gain.
            scale: whether the logits are divided by sqrt(C).
            heads: groups of channels with a softmax each; they divide C.
        """
        super().__init__()
        self.eps, self.heads = eps, heads
        self.query = nn.Parameter(torch.zeros(width))
        self.key_gain = None if normed else nn.Parameter(torch.ones(width))
        self.factor = width**-0.5 if scale else 1.0

    def forward(self, s: Stream) -> Tensor:
        """Return Σ_i softmax_i(w · RMSNorm(v_i)) v_i, (T, B, C)."""
        sources = sources_of(s)
        with without_autocast(sources[0]):
            return self.summed(sources)

    def summed(self, sources: list[Tensor]) -> Tensor:
        """Return the same of the sources, each (T, B, C)."""
        direction = self.factor * (self.query if self.key_gain is None else self.query * self.key_gain)
        if self.key_gain is not None and self.heads == 1:
            return softmax_sum(direction, sources, self.eps)
        units = [rms_norm(source, source.shape[-1:], eps=self.eps) for source in sources]
        products = torch.stack([at_least_fp32(unit) * at_least_fp32(direction) for unit in units])
        shares = products.unflatten(-1, (self.heads, -1)).sum(-1, keepdim=True).softmax(0).to(units[0].dtype)
        values = [v.unflatten(-1, (self.heads, -1)) for v in (units if self.key_gain is None else sources)]
        return weighted_sum(shares, values).flatten(-2)


NORM_EPS = 1e-6


def softmax_over_depth(shape: StackShape, config: Any) -> SoftmaxOverDepth:
    return SoftmaxOverDepth(shape.dim, config.values == "normed", config.scale, shape.eps(KEY_EPS), config.heads)


class AttentionResidualsConnection(Connection):
    """Read a sum over the sources, and make the output a source or a part of one."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        k = site.layer * site.n_sub + site.index
        self.source = f"source{1 + k // max(site.config.block, 1)}"
        self.over_depth = softmax_over_depth(site, site.config) if k else None
        self.norm = site.new_norm(eps=NORM_EPS)

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        h = s["source0"] if self.over_depth is None else self.over_depth(s)
        return self.norm(h), s | {"x": h}

    def write(self, s: Stream, y: Tensor) -> Stream:
        y = y.to(s["source0"].dtype)  # under autocast the stream stays as the embedding is, as Pre-LN's does
        return s | {self.source: s[self.source] + y if self.source in s else y}


@register_variant("attention_residuals")
class AttentionResiduals(Variant):
    """Feed each sub-layer a softmax over depth of all that is below.

    Stream: "source0", "source1", ... (T, B, C): the embedding and outputs of sub-layers, or sums of blocks of them, the
    newest so far. "x": what the newest sub-layer was fed, before its norm. What layer dropout skips is no source.
    """

    title = "Attention Residuals"
    paper = "Kimi Team 2026, Attention Residuals"
    year = 2026
    starts_as = "pre_ln"
    verified = (
        "fla-org's code of the softmax, Kimi K3's, Inkling-2 in transformers, and MHAR's author's (heads), decoder"
        " alone, in blocks too: activations, gradients"
    )
    ships_in = "Kimi K3 (block=24,norm_type=rms,norm_eps=1e-5), Inkling-2 (block=12,values=normed,scale=true)"
    extension = "Each stack has its own sources; cross-attention is one more sub-layer; eps 1e-6 in norms on sums."
    connection = AttentionResidualsConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        block: int = option(0, "sub-layers per block; 0: no blocks", minimum=0, maximum=MOST_LAYERS)
        values: Literal["plain", "normed"] = option("plain", "what is added up; normed: the keys, without their gain")
        scale: bool = option(False, "logits divided by sqrt(C)")
        heads: int = option(1, "groups of channels with a softmax each; they divide C", minimum=1, maximum=1024)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        query = "query / sqrt(d)" if o.scale else "query"
        key, value = ("RMS(v[i])", "RMS(v[i])") if o.values == "normed" else ("key_gain * RMS(v[i])", "v[i]")
        term = f"softmax_i(dot({query}, {key})) {value}"
        if o.heads > 1:
            query, key, value = (f"part({whole}, c, heads)" for whole in (query, key, value))
            term = f"softmax_i(dot({query}, {key})) {value}"

        def total(last: str) -> str:
            over_depth = f"sum_{{i=0..{last}}} {term}"
            return f"[{over_depth} for c = 0..heads-1]" if o.heads > 1 else over_depth

        source = "v[ceil(k / block)]"
        return (
            o.where("heads", "H") if o.heads > 1 else "",
            "start: v[0] = x; v[i] = 0 for i = 1..ceil(K / block)" if o.block else "start: v[0] = x",
            "k = 1: h = v[0]",
            f"else: h = {total('ceil((k - 1) / block)' if o.block else 'k-1')}",
            f"{source} = {source} + F(LN(h))" if o.block else "v[k] = F(LN(h))",
            f"output LN({total('ceil(K / block)' if o.block else 'K')})",
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        if shape.dim % config.heads:
            raise UserError(
                f"option heads={config.heads} of wiring 'attention_residuals' must divide the {shape.dim} channels of"
                f" the {shape.stack}"
            )
        self.over_depth = softmax_over_depth(shape, config)
        self.norm = shape.new_norm(eps=NORM_EPS)

    def open(self, x: Tensor) -> Stream:
        return {"x": x, "source0": x}

    def layer_output(self, s: Stream) -> Tensor:
        return self.over_depth(s)  # type: ignore[no-any-return]

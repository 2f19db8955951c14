"""Dynamic linear combination of layers: every layer is fed a learned weighted sum of all layers below it.

::

    y_0 ──┐
    y_1 ──┼─► Σ_k W[l,k] LN_k(y_k) ─► layer l+1 ─► y_{l+1}        (dlcl_pre, around Pre-LN layers)
    y_l ──┘

    y_0..y_l ─► LN_l(Σ_k W[l,k] y_k) ─► layer l+1 ─► y_{l+1}       (dlcl_post, around Post-LN layers)

Wang et al. 2019, "Learning Deep Transformer Models for Machine Translation", Eq. 8 (pre) and 9 (post). y_0 is the
embedding, y_l the output of layer l; encoder and decoder have histories of their own; a row above the last layer
makes the output, in ``dlcl_pre`` under Pre-LN's last norm. W starts as the average of each row. Checked against
wangqiangneu/dlcl@c632ee2 (``modules/dlcl.py``, ``models/dlcl_transformer.py``).

Paper and code: by Eq. 8 and 9 y_0 is normalised too; in the code it is not (its switch for that is dead), and the
first layer is fed W[0,0] y_0. ``window`` limits which entries start above 0; without ``softmax`` the others are
trained as well, as in the code. The dense residual network of the paper's Figure 2 is
``weights=fixed_one,norm=false``. ``init`` is that of the authors' fairseq by default.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import DepthWeights, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.common_options import INIT_HELP, Init
from fairseq_residuals.wirings.core.config import MOST_LAYERS, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.ops.depth_sum import weighted_sum
from fairseq_residuals.wirings.variants.post_ln import PostLNConnection
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection, TopNorm


def band(size: int, window: int) -> Tensor:
    """Return a matrix (K, K) of ones where a row reads, and zeros.

    Row l reads columns 0 to l, or the last ``window`` of these if ``window`` is not 0.
    """
    ones = torch.ones(size, size).tril()
    return ones.triu(1 - window) if window else ones


class DLCL(Variant):
    """Combine what is below by learned weights.

    Stream: "y0", "y1", ... (T, B, C), the history, in ``dlcl_pre`` after its norms.
    """

    paper = "Wang et al. 2019, Learning Deep Transformer Models for Machine Translation"
    year = 2019
    code = "wangqiangneu/dlcl@c632ee2"
    verified = "authors' code: activations, gradients, generation, initialisation"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        init: Init = option("fairseq_0.8", INIT_HELP, for_training=True)
        weights: Literal["learned", "fixed_one", "fixed_average"] = option(
            "learned", "weights of the combination: learned, or constants"
        )
        norm: bool = option(True, "norms of the combination (the layers keep theirs)")
        weight_type: Literal["scalar", "vector"] = option("scalar", "a weight per layer, or per layer and channel")
        softmax: bool = option(False, "normalise each row of weights by a softmax")
        window: int = option(0, "combine only this many of the layers below; 0: all", minimum=0, maximum=MOST_LAYERS)
        history_dropout: float = option(0.0, "dropout on the combination", minimum=0.0, maximum=0.99, for_training=True)

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        rows = shape.depth + 1
        start = band(rows, config.window)
        if config.weights != "fixed_one":
            start = start / start.sum(1, keepdim=True)
        start = start.unsqueeze(-1).repeat(1, 1, shape.dim if config.weight_type == "vector" else 1)
        self.weight = nn.Parameter(start, requires_grad=config.weights == "learned")
        self.norms = nn.ModuleDict({str(i): shape.new_norm() for i in range(1, rows)} if config.norm else {})
        self.history_dropout = nn.Dropout(config.history_dropout)
        self.window = config.window if config.softmax else 0  # without a softmax all entries are trained

    def normalize(self, k: int, y: Tensor) -> Tensor:
        return self.norms[str(k)](y) if str(k) in self.norms else y

    def combine(self, i: int, s: Stream) -> Tensor:
        """Return Σ_k W[i,k] y_k, (T, B, C)."""
        terms = range(max(0, i + 1 - self.window) if self.window else 0, i + 1)
        weights = self.weight[i, terms.start : terms.stop]
        weights = weights.softmax(0) if self.config.softmax else weights
        return self.history_dropout(weighted_sum(weights, [s[f"y{k}"] for k in terms]))  # type: ignore[no-any-return]

    def open(self, x: Tensor) -> Stream:
        return {"y0": x, "x": self.combine(0, {"y0": x})}

    def depth_weights(self, below: int) -> DepthWeights:
        weights, name = self.weight.detach().float().cpu(), "weight"
        left_out = band(len(weights), self.window).eq(0).unsqueeze(-1)
        if self.config.softmax:
            weights, name = weights.masked_fill(left_out, float("-inf")).softmax(1), "softmax(weight)"
        return DepthWeights(name, weights.masked_fill(left_out, float("nan")).mean(-1), below + 1, below)


def combined(o: Any) -> str:
    """Return the sum in the equations; without a softmax, a window only limits where weights start above 0."""
    first = "max(0, l + 1 - window)" if o.softmax and o.window else "0"
    weight = "softmax_j(weight[l,j])" if o.softmax else "weight[l,j]"
    return f"sum_{{j={first}..l}} {weight} y[j]"


@register_variant("dlcl_pre")
class DLCLPre(TopNorm, DLCL):
    title = "DLCL, Pre-LN"
    connection = PreLNConnection
    summation = "mixed"

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "start: y[0] = x",
            f"start: x = {combined(o)}",
            o.adds("F(LN(x))"),
            f"after each layer: y[l] = {'LN[l](x)' if o.norm else 'x'}",
            f"after each layer: x = {combined(o)}",
            "output LN(x)",
        )

    def after_layer(self, i: int, s: Stream) -> Stream:
        s = s | {f"y{i + 1}": self.normalize(i + 1, s["x"])}
        return s | {"x": self.combine(i + 1, s)}


@register_variant("dlcl_post")
class DLCLPost(DLCL):
    title = "DLCL, Post-LN"
    connection = PostLNConnection
    summation = "mixed"

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "start: y[0] = x",
            f"start: x = {combined(o)}",
            f"x = LN({o.residual} + F(x))",
            "after each layer: y[l] = x",
            f"after each layer: x = {f'LN[l]({combined(o)})' if o.norm else combined(o)}",
        )

    def after_layer(self, i: int, s: Stream) -> Stream:
        s = s | {f"y{i + 1}": s["x"]}
        return s | {"x": self.normalize(i + 1, self.combine(i + 1, s))}

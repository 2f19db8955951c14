"""DenseFormer: after each layer the stream is a learned weighted sum of the outputs of all layers up to it.

::

    X_0 ──┐
    X_1 ──┼─► Σ_j a[i,j] X_j = Y_i ─► layer i+1, a whole Pre-LN layer ─► X_{i+1}
    X_i ──┘

Pagliardini et al. 2024, section 3: X_0 = Y_0 the embedding, X_i = layer_i(Y_{i-1}), Y_i = Σ a[i,j] X_j over j ≤ i with
j ≡ i modulo the ``dilation`` if the ``period`` divides i, else Y_i = X_i; the norm on top reads Y_L. Each row of a
starts as (0, ..., 0, 1), so the model starts as Pre-LN, bit for bit. The weights are not normalised and may become
negative. Checked against epfml/DenseFormer@c99a623 (``experiments/models/denseformer.py``).

Paper and code: the package of the repository follows the paper. In the code of its experiments the period is another
one: an average after every p-th layer, over the outputs of every p-th layer only. The weights are decayed there, as
they are here by fairseq's ``--weight-decay``, which spares no parameter.

By our choice encoder and decoder each sum outputs of their own layers. This is DLCL around Pre-LN layers, without its
norms, starting from the last layer instead of the average.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import DepthWeights, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import MOST_LAYERS, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.ops.depth_sum import weighted_sum
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection


@register_variant("dense_former")
class DenseFormer(Variant):
    """Replace the output of each layer by a weighted sum of it and those below.

    Stream: "output0", "output1", ... (T, B, C): X_0, X_1, ..., each as long as a layer above still sums it.
    """

    title = "DenseFormer"
    paper = (
        "Pagliardini et al. 2024, DenseFormer: Enhancing Information Flow in Transformers via Depth Weighted Averaging"
    )
    year = 2024
    starts_as = "pre_ln"
    code = "epfml/DenseFormer@c99a623"
    verified = "authors' code, language model, dilation 1 and 2: activations, gradients; period: the paper's equation"
    extension = "Encoder and decoder have weights of their own, and the decoder sums outputs of decoder layers only."
    connection = PreLNConnection
    summation = "mixed"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        dilation: int = option(
            1, "sum every k-th output only, counted down from the newest", minimum=1, maximum=MOST_LAYERS
        )
        period: int = option(1, "sum after every p-th layer only", minimum=1, maximum=MOST_LAYERS)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        row = "after each layer" if o.period == 1 else "after each layer, l mod period = 0"
        last, source = ("l", "j") if o.dilation == 1 else ("floor(l / dilation)", "l mod dilation + dilation j")
        return (
            "start: X[0] = x",
            o.adds("F(LN(x))"),
            "after each layer: X[l] = x",
            f"{row}: x = sum_{{j=0..{last}}} weights[l,j] X[{source}]",
            "output LN(x)",
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        period = shape.require_layer("period", config.period, lowest=1)
        rows = range(period, shape.depth + 1, period)
        self.terms = {i: range(i % config.dilation, i + 1, config.dilation) for i in rows}
        self.last_use = {j: i for i, terms in self.terms.items() for j in terms}
        self.weights = nn.ParameterDict({str(i): torch.eye(len(terms))[-1].clone() for i, terms in self.terms.items()})
        self.norm = shape.new_norm()

    def open(self, x: Tensor) -> Stream:
        return self.without_spent(0, {"x": x, "output0": x})

    def after_layer(self, i: int, s: Stream) -> Stream:
        i += 1
        s = s | {f"output{i}": s["x"]}
        if i in self.terms:
            s = s | {"x": weighted_sum(self.weights[str(i)], [s[f"output{k}"] for k in self.terms[i]])}
        return self.without_spent(i, s)

    def without_spent(self, i: int, s: Stream) -> Stream:
        """Return the stream after ``i`` layers without the outputs that no layer above sums."""
        spent = {f"output{j}" for j in range(i + 1) if self.last_use.get(j, 0) <= i}
        return {key: value for key, value in s.items() if key not in spent}

    def depth_weights(self, below: int) -> DepthWeights:
        # where there is no row of weights, a layer is fed the output below it
        matrix = torch.full((self.shape.depth + 1,) * 2, float("nan")).fill_diagonal_(1)
        for row, terms in self.terms.items():
            matrix[row, list(terms)] = self.weights[str(row)].detach().float().cpu()
        return DepthWeights("a", matrix, below + 1, below)

"""Combine the embedding and the outputs of all layers so far by learned weights, as DLCL does."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import StackShape, Stream, Variant
from fairseq_residuals.wirings.core.common_options import Init
from fairseq_residuals.wirings.core.config import MOST_LAYERS, option
from fairseq_residuals.wirings.core.depth_mixing import DepthWeights, band, history
from fairseq_residuals.wirings.ops.depth_sum import weighted_sum


class LayerHistory(Variant):
    """Keep the history in the stream: "y0", "y1", ... (T, B, C)."""

    @dataclass(frozen=True)
    class Config(Variant.Config):
        init: Init = option(
            "fairseq_0.8",
            "as for every wiring; see wirings/core/initialization.py",
            for_training=True,
        )
        weights: Literal["learned", "fixed_one", "fixed_average"] = option("learned", "of the combination")
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
        return self.history_dropout(weighted_sum(weights, history(s, "y", terms)))  # type: ignore[no-any-return]

    def open(self, x: Tensor) -> Stream:
        return {"y0": x, "x": self.combine(0, {"y0": x})}

    def depth_weights(self, below: int) -> DepthWeights:
        weights, name = self.weight.detach().float().cpu(), "weight"
        left_out = band(len(weights), self.window).eq(0).unsqueeze(-1)
        if self.config.softmax:
            weights, name = weights.masked_fill(left_out, float("-inf")).softmax(1), "softmax(weight)"
        return DepthWeights(name, weights.masked_fill(left_out, float("nan")).mean(-1), below + 1, below)

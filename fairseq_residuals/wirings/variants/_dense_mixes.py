"""Mix all outputs so far, for each layer in several ways, by weights that each position computes from the newest."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from fairseq_residuals.wirings.core.base import StackShape, Stream, Variant
from fairseq_residuals.wirings.core.depth_mixing import history
from fairseq_residuals.wirings.core.norms import scale_gain
from fairseq_residuals.wirings.ops.depth_sum import weighted_sum
from fairseq_residuals.wirings.ops.rms_linear import rms_linear
from fairseq_residuals.wirings.utils.precision import at_least_fp32

MIX_EPS = 1e-6
MIXES = ("q", "k", "v", "x", "cross_q")
"""What they become in the stream: x is the residual."""
POST_GAIN = 0.001
"""Where the gains of the norms under which residuals are added start."""


def sizes_of_mixes(depth: int, ways: int, last: int, multiple: int) -> list[tuple[int, int, int]]:
    """Return for each layer of a stack the mixes above it, what they mix, and the width of the hidden layer.

    Args:
        depth: of the stack, above whose last layer there is one mix.
        ways: mixes above the others.
        last: times as wide is the hidden layer above the last layer.
        multiple: of which the next larger is the width of all; 1: it is the number of weights.
    """
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
        eps: of the norm of x.
    """
    hidden = gelu(rms_linear(x, w1, centred=False, eps=eps))
    dynamic = torch.tensordot(at_least_fp32(w2), hidden, 1).unflatten(0, bias.shape)
    weights = (dynamic + at_least_fp32(bias)[:, :, None, None]).to(outputs[0].dtype).unsqueeze(-1)
    return [weighted_sum(way, outputs) for way in weights.unbind()]


class DenseMixes(Variant):
    """Stream: "output0", "output1", ... (T, B, C), what is mixed; "q", "k", "v", "cross_q" as the connections say."""

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.ways = 5 if config.cross_query and shape.cross and shape.stack == "decoder" else 4
        sizes = sizes_of_mixes(shape.depth, self.ways, 4 if config.expand_last else 1, 64 if config.round_hidden else 1)
        normed = config.form == "pre_post_norm"
        self.w1 = nn.ParameterList(torch.randn(hidden, shape.dim) * shape.dim**-0.5 for _, _, hidden in sizes)
        self.w2 = nn.ParameterList(torch.zeros(ways * n, hidden) for ways, n, hidden in sizes)
        newest = 0.0 if normed else 1.0
        self.bias = nn.ParameterList(newest * torch.eye(n)[-1:].repeat(ways, 1) for ways, n, _ in sizes)
        self.norms = nn.ModuleList(shape.new_norm() for _ in range(shape.depth + 1) if normed)
        self.router_gain = nn.ParameterList(torch.ones(shape.dim) for _ in sizes if normed)
        self.post_norms = nn.ModuleList(shape.new_norm() for _ in sizes if normed)
        for norm in self.post_norms:
            scale_gain(norm, POST_GAIN)
        self.norm = shape.new_norm()

    def open(self, x: Tensor) -> Stream:
        return {"x": x, "output0": self.norms[0](x) if self.norms else x}

    def after_layer(self, i: int, s: Stream) -> Stream:
        x = s["x"]
        s = s | {f"output{i + 1}": self.norms[i + 1](x) if self.norms else x}
        w1 = self.w1[i] * self.router_gain[i] if self.norms else self.w1[i]
        mixes = dense_mixes(
            x, history(s, "output", range(i + 2)), w1, self.w2[i], self.bias[i], self.shape.eps(MIX_EPS)
        )
        named = dict(zip(MIXES, mixes, strict=False)) if len(mixes) > 1 else {"x": mixes[0]}
        if self.norms:
            named["x"] = self.post_norms[i](named["x"])
            named = {name: x + mix for name, mix in named.items()}
        return s | named

    def close(self, s: Stream) -> Tensor:
        return self.norm(s["x"])

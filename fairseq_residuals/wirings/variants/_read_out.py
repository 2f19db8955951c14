"""End several residual streams in one: by their sum, or by what is learned of how much each of them counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import StackShape, Stream
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.utils.precision import without_autocast
from fairseq_residuals.wirings.variants._multi_stream import StreamsVariant, stack_streams
from fairseq_residuals.wirings.variants._stream_router import ROUTER_EPS, StreamLogits


def learned_sum(streams: str) -> tuple[str, Any, str, str]:
    """Return what ``close=learned`` makes of the equations of ``streams``: each gets a weight of its own."""
    logit = f"scale[0] dot(weight[j], RMS([{streams}[i] for i = 0..n-1])) + bias[j]"
    plain = f"sum_{{j=0..n-1}} {streams}[j])"
    return "close", "learned", plain, f"sum_{{j=0..n-1}} (sigmoid({logit}) + 10^-6) {streams}[j])"


class LearnedSum(nn.Module):
    """Weigh each stream by a sigmoid and add them up, as the read-out of DeepSeek-V4 does."""

    def __init__(self, n: int, shape: StackShape, std: float) -> None:
        super().__init__()
        self.logits = StreamLogits(n, shape.dim, n, std, eps=shape.eps(ROUTER_EPS))
        self.scale = nn.Parameter(torch.full((1,), 0.01))

    def forward(self, streams: Tensor) -> Tensor:
        """(T, B, n, C) -> (T, B, C)"""
        with without_autocast(streams):
            weights = self.logits(streams, self.scale).sigmoid() + ROUTER_EPS
            weights = weights.permute(1, 2, 0).unsqueeze(-2)
            return (weights @ streams.to(weights.dtype)).squeeze(-2).to(streams.dtype)


class ReadOutVariant(StreamsVariant):
    """With an option for the end: the norm of the sum, or of what a read-out makes of the streams."""

    @dataclass(frozen=True)
    class Config(StreamsVariant.Config):
        close: Literal["sum", "learned"] = option("sum", "the streams at the top; learned: as in DeepSeek-V4")

    def __init__(self, config: Any, shape: StackShape, router: float = 1.0) -> None:
        """Make the read-out, whose matrix starts with the standard deviation ``router`` times (n C)^-0.5."""
        super().__init__(config, shape)
        self.read_out = LearnedSum(config.n, shape, router) if config.close == "learned" else None

    def layer_output(self, s: Stream) -> Tensor:
        if self.read_out is None:
            return super().layer_output(s)
        return self.read_out(stack_streams(s, self.config.n))  # type: ignore[no-any-return]

"""Add up what is below a sub-layer by a softmax over depth: what Attention Residuals and their successors share."""

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from fairseq_residuals.wirings.core.base import Stream
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
            width: C.
            normed: whether what is added up is normalized too; the norm then has no gain.
            scale: whether the logits are divided by sqrt(C).
            eps: of the norm.
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

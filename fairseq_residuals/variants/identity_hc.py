"""Identity-HC: mHC without mixing; streams differ by what is written to them alone.

::

    X_1..X_n ─┬─► Σ pre_i X_i ─► LN ─► F ─► · post_j ─► + ─► X'_1..X'_n        output: LN(mean X_j)
              └─────────────────────────────────────────┘

No code was published, nor a paper of that name; people report runs of mHC with H_res = I, and that is what this is
(:mod:`.mhc`). Its start is our choice, after the streamwise wide residual of NVIDIA's Megatron-LM as described in its
pull request 6716: the router's matrix is 0, pre is 1/n, and post = 2 sigmoid(b) with b spread evenly over ±``spread``,
whose mean is 1. So the mean of the streams is at first Pre-LN's stream, while the streams differ: without mixing,
streams that start alike and are treated alike would stay alike.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_residuals.core.base import Connection, Site, Stream
from fairseq_residuals.core.config import option
from fairseq_residuals.core.registry import register_variant
from fairseq_residuals.variants._multi_stream import StreamsConnection, StreamsVariant, stack_streams
from fairseq_residuals.variants._stream_router import GATES, ROUTER_EPS, GatedRouter, StreamLogits


class IdentityRouter(GatedRouter):
    def __init__(self, site: Site, n: int, spread: float) -> None:
        super().__init__(n, StreamLogits(n, site.dim, 2 * n, 0.0, eps=site.eps(ROUTER_EPS)))
        # of a single stream, which the norm rescales, nearly 1
        read = torch.full((n,), 1 / n).logit(eps=1e-3)
        write = spread * (2 * torch.arange(n) - (n - 1)) / max(n - 1, 1)
        self.logits.bias.data.copy_(torch.cat([read, write]))

    def mix(self, logits: Tensor) -> Tensor:
        return torch.eye(self.n, dtype=logits.dtype, device=logits.device)


@register_variant("identity_hc")
class IdentityHC(StreamsVariant):
    title = "Identity-HC"
    paper = "Reports of 2026, of mHC (Xie et al. 2025) with H_res = I"
    year = 2026
    equations = (
        "start: X[j] = x for j = 0..n-1",
        "z[o] = dot(weight[o], RMS([X[i] for i = 0..n-1])) for o = 0..2 n - 1",
        *GATES,
        "y = F(LN(sum_{i=0..n-1} pre[i] X[i]))",
        "X[j] = X[j] + post[j] y for j = 0..n-1",
        "output LN(sum_{j=0..n-1} X[j] / n)",
    )
    starts_as = "pre_ln"
    verified = "nothing was published; the start: Pre-LN"
    extension = f"{StreamsVariant.extension} The whole variant: mHC's gates, and the start of Megatron-LM's #6716."

    @dataclass(frozen=True)
    class Config(StreamsVariant.Config):
        spread: float = option(
            1.0, "the biases of post start from minus this to this", minimum=0.01, maximum=10.0, for_training=True
        )

    def connect(self, site: Site) -> Connection:
        return StreamsConnection(site, self.config.n, IdentityRouter(site, self.config.n, self.config.spread))

    def layer_output(self, s: Stream) -> Tensor:
        return stack_streams(s, self.config.n).mean(-2)

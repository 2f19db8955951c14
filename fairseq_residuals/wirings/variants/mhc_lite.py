"""mHC-lite: mHC whose mixing matrix is a weighted mean of all n! permutations, and so needs no Sinkhorn steps.

2601.05732. As :mod:`.mhc`, but res is exactly doubly stochastic and applied transposed, the router's norm has a gain,
and each stream passes the norm on top (FFTYYY/mhc-lite@ea19775; its own mHC is ``mixing=sinkhorn``). The matrix starts
at 0, biases of pre and post at 1 for one stream (drawn there; here by the sub-layer's number) and -1 for the others,
those of res at 0 for the identity and -8 for the rest. That is not Pre-LN.
"""

from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal

import torch
from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, Stream
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.ops.hyper_mix import sinkhorn
from fairseq_residuals.wirings.variants._streams import StreamLogits, StreamsConnection, StreamsVariant, stack_streams
from fairseq_residuals.wirings.variants.mhc import GATES, MHCRouter

PERMUTED = "r[p] = scale[2] z[2 n + p] + bias[2 n + p] for p = 0..factorial(n) - 1; res = permute(r)"
BALANCED = "r[i,j] = scale[2] z[(2 + i) n + j] + bias[(2 + i) n + j] for i = 0..n-1, j = 0..n-1; res = sinkhorn(r)"


def permutation_matrices(n: int) -> Tensor:
    """Return all permutations of n, (n!, n, n), in lexicographic order: the first is the identity."""
    return torch.eye(n)[torch.tensor(list(permutations(range(n))))]


def mean_of_permutations(logits: Tensor, matrices: Tensor) -> Tensor:
    """Return the mean of ``matrices`` (n!, n, n) by a softmax of ``logits`` (n!, ...), (..., n, n)."""
    return torch.tensordot(logits.softmax(0), matrices.to(logits.dtype), ([0], [0]))


class MHCLiteRouter(MHCRouter):
    matrices: Tensor | None

    def __init__(self, site: Site, n: int, mixing: str) -> None:
        matrices = permutation_matrices(n)
        others = torch.arange(len(matrices)) > 0 if mixing == "permutations" else torch.ones(n, n) - torch.eye(n)
        one = 2 * torch.eye(n)[(site.layer * site.n_sub + site.index) % n] - 1
        super().__init__(n, StreamLogits(site, n, 2 * n + others.numel(), std=0.0, gain=True))
        self.logits.bias.data.copy_(torch.cat([one, one, -8 * others.flatten()]))
        self.register_buffer("matrices", matrices if mixing == "permutations" else None, persistent=False)
        self.register_load_state_dict_post_hook(MHCLiteRouter.reset_buffers)

    def reset_buffers(self, *_: Any) -> None:
        """Make what no checkpoint holds, after loading: the model may have been built without memory."""
        if self.matrices is not None:
            self.matrices = permutation_matrices(self.n).to(self.logits.weight.device)

    def mix(self, logits: Tensor) -> Tensor:
        if self.matrices is None:
            return sinkhorn(logits.unflatten(0, (self.n, self.n))).movedim((0, 1), (-1, -2))
        return mean_of_permutations(logits, self.matrices).mT


@register_variant("mhc_lite")
class MHCLite(StreamsVariant):
    title = "mHC-lite"
    paper = "Yang and Gao 2026, mHC-lite: You Don't Need 20 Sinkhorn-Knopp Iterations"
    year = 2026
    code = "FFTYYY/mhc-lite@ea19775"
    verified = "authors' code, decoder, permutations and Sinkhorn: activations, gradients; cross-attention: none"
    extension = f"{StreamsVariant.extension} Which stream a sub-layer starts with, which the authors draw at random."

    @dataclass(frozen=True)
    class Config(StreamsVariant.Config):
        n: int = option(4, "streams", minimum=1, maximum=4)
        mixing: Literal["permutations", "sinkhorn"] = option("permutations", "how the mixing matrix is made")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        permutes = o.mixing == "permutations"
        outputs = "2 n + factorial(n)" if permutes else "n (n + 2)"
        return (
            "start: X[j] = x for j = 0..n-1",
            f"z[o] = dot(weight[o], (1 + gamma) * RMS([X[i] for i = 0..n-1])) for o = 0..{outputs} - 1",
            *GATES,
            PERMUTED if permutes else BALANCED,
            "y = F(LN(sum_{i=0..n-1} pre[i] X[i]))",
            "X[j] = post[j] y + sum_{i=0..n-1} res[i,j] X[i] for j = 0..n-1",
            "output sum_{j=0..n-1} LN(X[j])",
        )

    def connect(self, site: Site) -> Connection:
        n = self.config.n
        return StreamsConnection(site, n, MHCLiteRouter(site, n, self.config.mixing))

    def layer_output(self, s: Stream) -> Tensor:
        assert self.norm is not None
        return self.norm(stack_streams(s, self.config.n)).sum(-2)  # type: ignore[no-any-return]

    def close(self, s: Stream) -> Tensor:
        return self.layer_output(s)

"""Augment what skips a sub-layer by what is learned of it: the connections of LAuReL."""

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.ops.depth_sum import weighted_sum
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection
from fairseq_residuals.wirings.variants.sandwich_ln import SandwichConnection, SandwichLN


class LowRank(nn.Module):
    """B A x, of matrices A (r, C) and B (C, r)."""

    def __init__(self, width: int, rank: int, starts_at_zero: bool) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        nn.init.xavier_uniform_(self.down.weight)
        (nn.init.zeros_ if starts_at_zero else nn.init.xavier_uniform_)(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)"""
        return self.up(self.down(x))  # type: ignore[no-any-return]


class AugmentedConnection(PreLNConnection):
    """Add to x what is learned of it, and of what x was before.

    Stream, where it looks back: "past1", "past2", ... (T, B, C), x of the connections below, the newest first.
    """

    def __init__(self, site: Site, *, weighs: bool, rank: int = 0, past: int = 0) -> None:
        """Make the parameters.

        Args:
            site: where the connection sits.
            weighs: whether the sub-layer's output and the rest have a weight each, which starts at 1.
            rank: of the linear map; 0: there is none.
            past: how many outputs of connections are added up, x among them; fewer where there are not as many.
        """
        super().__init__(site)
        self.weights = nn.Parameter(torch.zeros(2)) if weighs else None
        self.low_rank = LowRank(site.dim, rank, starts_at_zero=not past) if rank else None
        self.past = past
        outputs = site.layer * site.n_sub + site.index + 1
        self.c = nn.Parameter(torch.zeros(min(past, outputs))) if past else None

    def augmented(self, s: Stream) -> Tensor:
        """Return x and what is learned of it, (T, B, C)."""
        x = s["x"]
        if self.c is None:
            return x if self.low_rank is None else x + self.scaled(self.low_rank(x))
        # layer dropout leaves fewer than there are coefficients
        recent = [x, *(s[f"past{j}"] for j in range(1, len(self.c)) if f"past{j}" in s)]
        total: Tensor = weighted_sum(self.c[: len(recent)], recent)
        return x + self.scaled(total if self.low_rank is None else self.low_rank(total))

    def write(self, s: Stream, y: Tensor) -> Stream:
        before = [s["x"], *(s[f"past{j}"] for j in range(1, self.past) if f"past{j}" in s)]
        kept = {f"past{j}": x for j, x in enumerate(before[: max(self.past - 1, 0)], start=1)}
        x, y = self.augmented(s), self.scaled(y)
        if self.weights is None:
            return s | kept | {"x": x + y}
        a, b = 2 * self.weights.softmax(0)
        return s | kept | {"x": a * y + b * x}


class GemmaConnection(SandwichConnection):
    """Add the normalized input and a map of it beside self-attention; elsewhere be Sandwich-LN.

    Stream, while self-attention runs: "normed" (T, B, C), what it is fed.
    """

    def __init__(self, site: Site, rank: int) -> None:
        super().__init__(site, SandwichLN.Config())
        self.augments = site.kind == "self"
        if self.augments:
            self.low_rank = LowRank(site.dim, rank, starts_at_zero=False)
            self.low_rank_norm = site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        u, s = super().read(s)
        return u, s | {"normed": u} if self.augments else s

    def write(self, s: Stream, y: Tensor) -> Stream:
        if not self.augments:
            return super().write(s, y)
        u, rest = s["normed"], {key: x for key, x in s.items() if key != "normed"}
        return rest | {"x": (s["x"] + y + u + self.low_rank_norm(self.low_rank(u))) * 2**-0.5}

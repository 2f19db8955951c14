"""LAuReL, the learned augmented residual layer: x' = a F(LN(x)) + b g(x and what is below).

Menghani, Kumar and Kumar 2024, "LAuReL: Learned Augmented Residual Layer" (2411.07501, section 2), around Pre-LN::

    laurel_rw   x' = a y + b x,  (a, b) = 2 softmax of two numbers
    laurel_lr   x' = y + x + B A x,  A (r, C), B (C, r)
    laurel_pa   x' = y + x + B A Σ_j c_j x_j,  over the last k outputs of residual connections, x among them

No code was published, nor how these start. Ours: a = b = 1; A Xavier and B = 0; A and B Xavier and c = 0: as Pre-LN.
``rw=true`` adds a and b to the other two (RW+LR, RW+LR+PA). The option depth_mup divides B A x as it does y.

``laurel_gemma`` is that of Gemma 3n (huggingface/transformers 5.23.0, ``gemma3n``) around self-attention, in layers of
Sandwich-LN: x' = (x + LN(SA(u)) + u + LN(B A u)) / sqrt(2), u = LN(x); never Pre-LN. ``n=4`` is its AltUp around them.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Summation, Variant
from fairseq_residuals.wirings.core.config import MOST_LAYERS, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.ops.depth_sum import weighted_sum
from fairseq_residuals.wirings.variants.altup import ACTIVE_HELP, MOST_STREAMS, AltUpVariant
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection, TopNorm
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
            weighs: whether the sub-layer's output and the rest have a weight each, which starts at 1.
            rank: rank of the linear map; 0: there is none.
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

    def __init__(self, site: Site) -> None:
        rank = site.config.rank
        super().__init__(replace(site, config=SandwichLN.Config()))
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


MOST_CHANNELS = 65_536
BOTH_WEIGHTS = "a = 2 sigmoid(weights[0] - weights[1])"


def augmented(o: Any) -> str:
    """Return the equation of a sub-layer with g beside it, and weights with ``rw``."""
    return f"{BOTH_WEIGHTS}; {o.adds('a F(LN(x)) + (2 - a) g', to='(2 - a) x')}" if o.rw else o.adds("F(LN(x)) + g")


class Laurel(TopNorm):
    paper = "Menghani et al. 2024, LAuReL: Learned Augmented Residual Layer"
    year = 2024
    verified = "the paper's equations (no code was published)"
    extension = "Each sub-layer has its own, cross-attention too. They start as Pre-LN."
    summation: ClassVar[Summation] = "pre"


@register_variant("laurel_rw")
class LaurelRW(Laurel):
    title = "LAuReL, residual weights"
    starts_as = "pre_ln"

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return BOTH_WEIGHTS, o.adds("a F(LN(x))", to="(2 - a) x"), "output LN(x)"

    def connect(self, site: Site) -> Connection:
        return AugmentedConnection(site, weighs=True)


@register_variant("laurel_lr")
class LaurelLR(Laurel):
    title = "LAuReL, low rank"
    starts_as = "pre_ln"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        rank: int = option(4, "r, rows of A", minimum=1, maximum=MOST_CHANNELS)
        rw: bool = option(False, "a and b of laurel_rw, too")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return "g = up(down(x))", augmented(o), "output LN(x)"

    def connect(self, site: Site) -> Connection:
        return AugmentedConnection(site, weighs=self.config.rw, rank=self.config.rank)


@register_variant("laurel_pa")
class LaurelPA(Laurel):
    title = "LAuReL, previous activations"
    starts_as = "pre_ln"
    extension = "Each sub-layer has its own, cross-attention too, and looks back in its stack. They start as Pre-LN."

    @dataclass(frozen=True)
    class Config(Variant.Config):
        past: int = option(3, "k, outputs, x among them", minimum=1, maximum=MOST_LAYERS)
        rank: int = option(4, "r, rows of A; 0: no A and B", minimum=0, maximum=MOST_CHANNELS)
        rw: bool = option(False, "a and b of laurel_rw, too")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        mapped = "; g = up(down(g))" if o.rank else ""
        return "X[k] = x", f"g = sum_{{j=0..min(past, k)-1}} c[j] X[k-j]{mapped}", augmented(o), "output LN(x)"

    def connect(self, site: Site) -> Connection:
        return AugmentedConnection(site, weighs=self.config.rw, rank=self.config.rank, past=self.config.past)


@register_variant("laurel_gemma")
class LaurelGemma(Laurel, AltUpVariant):
    title = "LAuReL in Gemma 3n"
    year = 2025
    paper = "Google 2025, Gemma 3n (released weights), after LAuReL"
    code = "huggingface/transformers@v5.23.0"
    verified = "Gemma 3n in huggingface/transformers, with its AltUp (n): activations, gradients; cross-attention: none"
    ships_in = "Gemma 3n (n=4,norm_type=rms)"
    summation = "none"
    extension = "Cross-attention is as in Sandwich-LN. A and B start by Xavier's rule."
    connection = GemmaConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        rank: int = option(64, "r, rows of A", minimum=1, maximum=MOST_CHANNELS)
        n: int = option(1, "streams of AltUp around the layers; 1: none", minimum=1, maximum=MOST_STREAMS)
        active: int = option(0, ACTIVE_HELP, minimum=0, maximum=MOST_STREAMS - 1)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return cls.around(
            o,
            "SA: u = LN(x); x = (x + drop(LN_out(F'(u))) + u + LN_low_rank(up(down(u)))) / sqrt(2)",
            "else: x = x + drop(LN_out(F'(LN(x))))",
        )

"""Admin: Post-LN whose residuals are weighted by trained vectors that start where a profile of the network says.

::

    x ─┬─► F ──── + ─► LN ─► x'
       └─► * ω ───┘

Liu et al. 2020, "Understanding the Difficulty of Training Transformers", section 4: x' = LN(ω_i x + F_i(x)), where all
entries of ω_i start at (Σ_{j<i} Var[F_j(x)])^{1/2}, measured once, before training.
Checked against LiyuanLucasLiu/Transformer-Clinic@70f72b7 (``modules/transformer_layer.py``).

Paper and code: the paper counts the input as Var = 1; the code measures it, and the variance of every norm's output,
over all positions of one batch, padding included: ω_1 = 1, ω_{i+1}² = Var[ω_i x] + Var[F_i(x)], ω_i already being
applied. Encoder and decoder each start at 1. The omegas are trained (and decayed, if weights are). How they are
measured is ``wirings/admin_measurement.py``; from then on they live in the checkpoint, and loading one measures
nothing. ``init`` is that of the authors' fairseq by default.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, Stream, Variant
from fairseq_residuals.wirings.core.common_options import INIT_HELP, Init
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.post_ln import PostLNConnection


class AdminConnection(PostLNConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.omega = nn.Parameter(torch.ones(site.dim))
        self.profile = site.config.profile

    @property
    def known(self) -> bool:
        """Whether ``omega`` is a profile's, or trained; all are built as ones, which the first of a profile stays."""
        return not self.omega.is_meta and bool((self.omega != 1).any())

    def write(self, s: Stream, y: Tensor) -> Stream:
        return s | {"x": self.norm(s["x"] * self.omega + y)}

    def gains(self) -> tuple[Tensor | float, Tensor | float]:
        return self.omega, 1.0


@register_variant("admin")
class Admin(Variant):
    title = "Admin"
    paper = "Liu et al. 2020, Understanding the Difficulty of Training Transformers"
    year = 2020
    code = "LiyuanLucasLiu/Transformer-Clinic@70f72b7"
    export_as = "post_ln"
    verified = "authors' code: profiles, activations, gradients, generation, initialisation"
    connection = AdminConnection
    summation = "post"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        init: Init = option("fairseq_0.8", INIT_HELP, for_training=True)
        profile: Literal["auto"] | str = option(
            "auto",
            "where the omegas start: auto, profiled on the first batch of training; old checkpoints may name a file",
            for_training=True,
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (f"x = LN(omega * {o.residual} + F(x))",)

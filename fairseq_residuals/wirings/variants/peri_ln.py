"""Peri-LN: Sandwich-LN above normalised embeddings.

::

    x ─┬─► LN ─► F ─► LN ─► + ─► x'
       └────────────────────┘

Kim et al. 2025. No code was published, and the paper leaves open whether the embeddings are normalised; checked against
HyperCLOVA X SEED Think in huggingface/transformers@v5.23.0 (``modeling_hyperclovax.py``), whose are not
(``embed_norm=false``), and which multiplies branches by a constant (``multiplier``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fairseq_residuals.wirings.core.base import StackShape, Stream
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.sandwich_ln import SandwichLN


@register_variant("peri_ln")
class PeriLN(SandwichLN):
    title = "Peri-LN"
    paper = "Kim et al. 2025, Peri-LN: Revisiting Normalization Layer in the Transformer Architecture"
    year = 2025
    verified = "HyperCLOVA X in transformers (embed_norm=false): activations, gradients; the paper's equations"
    ships_in = "Muse-Glimmer-30B (norm_type=rms), HyperCLOVA X SEED Think (norm_type=rms,embed_norm=false, multiplier)"
    extension = SandwichLN.extension

    @dataclass(frozen=True)
    class Config(SandwichLN.Config):
        embed_norm: bool = option(True, "norm of the embeddings, below the first layer")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return "start: x = LN_embed(x)" if o.embed_norm else "", *super().equations(o)

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.embed_norm = shape.new_norm() if config.embed_norm else None

    def open(self, x: Tensor) -> Stream:
        return super().open(x if self.embed_norm is None else self.embed_norm(x))

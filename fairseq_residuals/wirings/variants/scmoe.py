"""ScMoE's shortcut: a branch reads what the FFN of one layer reads, and is added at the end of the next.

::

    x ─► SA ─► x1 ─► FFN ─► x2 ─► SA ─► x3 ─► FFN ─► + ─► x4        each Pre-LN
               └─► LN ─► S ──────────────────────────┘

Layers 2i - 1 and 2i are a pair: v = LN(x1) is what the first one's FFN is fed, and x4 = x3 + F(LN(x3)) + S(v). Cai et
al. 2024, "Shortcut-connected Expert Parallelism for Accelerating Mixture of Experts" (2404.05019), as in Meituan's
"LongCat-Flash" (2025), where S is a mixture of experts whose exchange overlaps with what runs beside it. Checked
against huggingface/transformers@v5.23.0 (``modeling_longcat_flash.py``), S an FFN of ReLU.

Here S is such an FFN, of as many channels as the layers' unless ``width`` says otherwise, and without dropout: experts
are no wiring. If S gives 0 this is Pre-LN of all layers. LongCat counts a pair as one layer. By our choice a pair whose
one layer is skipped by layer dropout adds no S(v).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Summation
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection


class ShortcutConnection(PreLNConnection):
    """Stream: "shortcut{i}_{j}" (T, B, C), what S of pair i gives, until sub-layer j of its second layer adds it."""

    summation: Summation = "none"

    def __init__(self, site: Site, width: int) -> None:
        super().__init__(site)
        self.key, first = f"shortcut{site.layer // 2}_{site.index}", site.layer % 2 == 0
        self.shortcut_in = nn.Linear(site.dim, width) if first else None
        self.shortcut_out = nn.Linear(width, site.dim) if first else None

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        h, s = super().read(s)
        if self.shortcut_in is None or self.shortcut_out is None:
            return h, s
        return h, s | {self.key: self.shortcut_out(torch.relu(self.shortcut_in(h)))}

    def write(self, s: Stream, y: Tensor) -> Stream:
        s = super().write(dict(s), y)
        return s if self.shortcut_in is not None or self.key not in s else s | {"x": s["x"] + s.pop(self.key)}


@register_variant("scmoe")
class ScMoE(OptionalTopNorm):
    title = "ScMoE's shortcut"
    paper = "Cai et al. 2024, Shortcut-connected Expert Parallelism for Accelerating Mixture of Experts"
    year = 2024
    code = "huggingface/transformers@v5.23.0"
    verified = "LongCat-Flash in transformers with an FFN for its experts, decoder alone: activations, gradients"
    ships_in = "LongCat-Flash (norm_type=rms,norm_eps=1e-5; S a mixture of experts)"
    extension = (
        "S is an FFN. In a decoder cross-attention follows each self-attention; each stack pairs its own layers."
    )
    summation: ClassVar[Summation] = "none"

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        width: int = option(0, "inner channels of S; 0: those of the FFN", minimum=0, maximum=1_000_000)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "FFN, l mod 2 = 1: v = LN(x); s = shortcut_out(relu(shortcut_in(v))); x = x + F(v)",
            "else, FFN: x = x + F(LN(x)) + s",
            "else: x = x + F(LN(x))",
            *cls.top(o),
        )

    @classmethod
    def refusal(cls, *, alone: bool, topmost: bool, depth: int = 2) -> str:
        return f"it wires layers in pairs, and {depth} is no even number of layers" if depth % 2 else ""

    def connect(self, site: Site) -> Connection:
        if site.kind != "ffn":
            return PreLNConnection(site)
        return ShortcutConnection(site, self.config.width or site.ffn_dim)

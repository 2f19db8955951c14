"""Parallel blocks: all sub-layers of a layer read its input, and their outputs are added to it together.

::

    x ─┬─► LN ─┬─► SA ──► + ─► x'
       │       └─► FFN ─► │
       └──────────────────┘

Wang and Komatsuzaki 2021, "GPT-J-6B": x' = x + SA(u) + FFN(u), u = LN(x); Chowdhery et al. 2022, "PaLM: Scaling
Language Modeling with Pathways", section 2. With ``norms=2`` each branch has a norm of its own, on the same x (Black et
al. 2022, "GPT-NeoX-20B"). A norm is on top of the stack. Checked against huggingface/transformers@v5.23.0
(``modeling_gptj.py``, ``modeling_cohere.py``, ``modeling_gpt_neox.py``). Each branch has its own dropout, as in
GPT-NeoX and Phi; Falcon drops the sum once.

No author has a form for encoder-decoders. By our choice cross-attention is a third branch of the layer's input: one
read and one write per layer, the property that the design is used for, survive only so. Its queries then do not see
what the layer's self-attention found. The norm of a layer belongs to the first sub-layer that reads it.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Summation
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm


class ParallelConnection(Connection):
    """Connect one of the branches that read the same input.

    From the first branch to the last the stream also has "branch_input" (T, B, C): what they read, normalised where one
    norm is for all.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.shares_norm = site.config.norms == 1
        # the layer's branches make one sum
        self.summation: Summation = "pre" if site.last else "none"
        self.norm = site.new_norm() if site.first or not self.shares_norm else None

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        if self.site.first:
            s = s | {"branch_input": self.norm(s["x"]) if self.norm is not None and self.shares_norm else s["x"]}
        h = s["branch_input"]
        return h if self.norm is None or self.shares_norm else self.norm(h), s

    def write(self, s: Stream, y: Tensor) -> Stream:
        kept = {key: value for key, value in s.items() if not (self.site.last and key == "branch_input")}
        return kept | {"x": s["x"] + self.scaled(y)}


@register_variant("parallel")
class Parallel(OptionalTopNorm):
    title = "Parallel blocks"
    paper = "Wang and Komatsuzaki 2021, GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model"
    year = 2021
    code = "huggingface/transformers@v5.23.0"
    verified = "GPT-J, Command-R and GPT-NeoX in transformers, decoder alone: activations, gradients"
    ships_in = (
        "GPT-J, CodeGen, PaLM, Falcon-7B, Phi-1 to 2, Command-R, Command R7B, Command A+, North-Micro-Vision; GPT-NeoX,"
        " Pythia, Falcon-40B (norms=2)"
    )
    extension = "Cross-attention is a third branch of the layer's input."
    connection = ParallelConnection

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        former = ("cross=parallel",)
        norms: Literal[1, 2] = option(1, "one norm for all branches of a layer, or (2) one for each")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        norm, branch = ("x", "F(LN(u))") if o.norms == 2 else ("LN(x)", "F(u)")
        # the branches of a layer make one sum
        return (
            f"SA: u = {norm}",
            o.adds(branch, gated=False),
            f"last of a layer: x = {o.gated}" if o.gpas != "none" else "",
            *cls.top(o),
        )

"""T-Fixup: no norms at all; an initialisation that keeps the first updates small.

::

    x ─┬─► F ─► + ─► x'
       └────────┘

Huang et al. 2020, "Improving Transformer Optimization Through Better Initialization", section 4: x' = x + F(x), no
warm-up. With N layers in the stack, after Xavier initialisation: FFN, values and attention's output times 0.67
N^(-1/4) in the encoder and (9N)^(-1/4) in the decoder; embeddings times (9N)^(-1/4). Checked against
layer6ai-labs/T-Fixup@b17e166 (``modules/transformer_layer.py``, ``models/transformer.py``).

Paper and code: the paper has one N, the code each stack's own. In the code (and here) queries and keys keep fairseq's
gain of 1/sqrt(2), the values get theirs back by sqrt(2) (with an ``init`` of other gains they never lost it), the
biases of queries, keys and values keep PyTorch's random values, and a table that encoder and decoder share is scaled
once, by the encoder's N. The code's unused cross-attention norm is left out. ``init`` is that of the authors' fairseq
by default.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Stream, Summation, Variant
from fairseq_residuals.wirings.core.common_options import INIT_HELP, STARTS_BY_DEPTH, Init
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant


class PlainConnection(Connection):
    summation: Summation = "pre"

    def write(self, s: Stream, y: Tensor) -> Stream:
        return s | {"x": s["x"] + self.scaled(y)}


@register_variant("t_fixup")
class TFixup(Variant):
    title = "T-Fixup"
    paper = "Huang et al. 2020, Improving Transformer Optimization Through Better Initialization"
    year = 2020
    code = "layer6ai-labs/T-Fixup@b17e166"
    verified = "authors' code: activations, gradients, generation, initialisation"
    connection = PlainConnection
    summation = "pre"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        init: Init = option("fairseq_0.9", INIT_HELP, for_training=True)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (o.adds("F(x)"),)

    @classmethod
    def contradiction(cls, config: Any) -> str:
        return STARTS_BY_DEPTH if config.depth_mup else super().contradiction(config)

    @torch.no_grad()
    def init_weights(self, layers: nn.ModuleList, embed_tokens: nn.Module | None) -> None:
        depth, encoder = self.shape.depth, self.shape.stack == "encoder"
        factor = 0.67 * depth**-0.25 if encoder else (9 * depth) ** -0.25
        for name, module in layers.named_modules():
            if name.endswith("v_proj"):
                module.weight.mul_(factor * (2**0.5 if self.config.init.startswith("fairseq") else 1.0))
            elif name.endswith(("fc1", "fc2", "out_proj")):
                module.weight.mul_(factor)
        for module in () if embed_tokens is None else embed_tokens.modules():
            if isinstance(module, nn.Embedding):
                module.weight.mul_((9 * depth) ** -0.25)

"""DeepNorm: Post-LN with the residual scaled up and some weights initialised smaller, both by depth.

::

    x ─┬─► F ─► + ─► LN ─► x'
       └─► ·α ──┘

Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers", Figure 2 and section 4: x' = LN(α x + F(x)); the
weights of the FFN, of the values and of the attention's output get a gain of β. With N encoder and M decoder layers:

=========================  =====================  ======================
stack                      α                      β
=========================  =====================  ======================
encoder of a pair          0.81 (N^4 M)^(1/16)    0.87 (N^4 M)^(-1/16)
decoder of a pair          (3M)^(1/4)             (12M)^(-1/4)
encoder, decoder alone     (2L)^(1/4)             (8L)^(-1/4)
=========================  =====================  ======================

Checked against microsoft/torchscale@4d1e0e8 and LiyuanLucasLiu/Transformer-Clinic@70f72b7. Paper and code: the paper
draws from xavier_normal(gain β), queries and keys with gain 1 (``beta=paper``); of biases it says nothing, and they
stay as fairseq draws them (Transformer-Clinic's fairseq: 0). torchscale keeps PyTorch's initialisation of linear layers
for all, and scales weights and biases; its factor for the encoder of a pair is 1.15 (N^4 M)^(-1/16), where 1.15 =
1/0.87 looks like a constant turned upside down (``beta=torchscale``).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.core.base import Connection, Site, StackShape, Stream, Summation, Variant
from fairseq_residuals.core.config import option
from fairseq_residuals.core.registry import register_variant


def alpha_beta(shape: StackShape) -> tuple[float, float]:
    """Return the two constants of a stack, as the paper has them."""
    n, m = shape.enc_depth, shape.dec_depth
    if not shape.cross:
        return (2 * shape.depth) ** 0.25, (8 * shape.depth) ** -0.25
    if shape.stack == "decoder":
        return (3 * m) ** 0.25, (12 * m) ** -0.25
    return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)


class DeepNetConnection(Connection):
    summation: Summation = "post"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.alpha = alpha_beta(site)[0]
        self.norm = site.new_norm()

    def write(self, s: Stream, y: Tensor) -> Stream:
        return s | {"x": self.norm(self.alpha * s["x"] + y)}

    def gains(self) -> tuple[Tensor | float, Tensor | float]:
        return self.alpha, 1.0


@register_variant("deepnet")
class DeepNet(Variant):
    title = "DeepNorm"
    paper = "Wang et al. 2022, DeepNet: Scaling Transformers to 1,000 Layers"
    year = 2022
    equations = (
        "x = LN(alpha x + F(x))",
        "encoder, pair: where alpha = 0.81 (N^4 M)^(1/16)",
        "decoder, pair: where alpha = (3 M)^(1/4)",
        "alone: where alpha = (2 L)^(1/4)",
    )
    code = "microsoft/torchscale@4d1e0e8"
    verified = "authors' code (torchscale, Transformer-Clinic): activations, gradients, generation, initialisation"
    ships_in = "GLM-130B"
    export_as = "post_ln"
    draws_weights = True
    connection = DeepNetConnection
    summation = "post"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        beta: Literal["paper", "torchscale"] = option("paper", "whose initialisation", for_training=True)

    @torch.no_grad()
    def init_weights(self, layers: nn.ModuleList, embed_tokens: nn.Module | None) -> None:
        beta = alpha_beta(self.shape)[1]
        if self.config.beta == "torchscale" and self.shape.cross and self.shape.stack == "encoder":
            beta = 1.15 * beta / 0.87
        for name, module in layers.named_modules():
            if not isinstance(module, nn.Linear):
                continue
            scaled = not name.endswith(("q_proj", "k_proj"))
            if self.config.beta == "paper":
                nn.init.xavier_normal_(module.weight, gain=beta if scaled else 1.0)
            else:
                module.reset_parameters()
                if scaled:
                    module.weight.mul_(beta)
                    module.bias.mul_(beta)

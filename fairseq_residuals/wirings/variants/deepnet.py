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

``exponent=0.5`` with ``loops`` (how often the layers run) are the constants of Li et al. 2026, "DeepLoop" (2607.13491),
for a stack alone, whose L is layers times loops. The abstract is all that was read of it, its code was not compared
with, and nothing here runs layers more than once: the constants alone are offered. In a pair the same exponent, and a
quarter of it in the encoder, are our extrapolation.

MiniMax-Text-01 and M1 are this, RMSNorms, on embeddings that pass a norm; so is GLM-130B, by LayerNorms and with
``exponent=0.5`` (THUDM/SwissArmyTransformer@c23a8bf, ``glm130B_model.py``, read and not run).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.initialization import matrices_of
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.post_ln import PostLNConnection


def alpha_beta(shape: StackShape, exponent: float = 0.25, loops: int = 1) -> tuple[float, float]:
    """Return the two constants of a stack, as the paper has them; of DeepLoop for another exponent."""
    n, m, depth = (loops * layers for layers in (shape.enc_depth, shape.dec_depth, shape.depth))
    if not shape.cross:
        return (2 * depth) ** exponent, (8 * depth) ** -exponent
    if shape.stack == "decoder":
        return (3 * m) ** exponent, (12 * m) ** -exponent
    return 0.81 * (n**4 * m) ** (exponent / 4), 0.87 * (n**4 * m) ** (-exponent / 4)


class DeepNetConnection(PostLNConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.alpha = alpha_beta(site, site.config.exponent, site.config.loops)[0]

    def write(self, s: Stream, y: Tensor) -> Stream:
        return s | {"x": self.norm(self.alpha * s["x"] + y)}

    def gains(self) -> tuple[Tensor | float, Tensor | float]:
        return self.alpha, 1.0


@register_variant("deepnet")
class DeepNet(Variant):
    title = "DeepNorm"
    paper = "Wang et al. 2022, DeepNet: Scaling Transformers to 1,000 Layers"
    year = 2022
    code = "microsoft/torchscale@4d1e0e8"
    verified = (
        "authors' code (torchscale, Transformer-Clinic): activations, gradients, generation, initialisation; MiniMax in"
        " transformers: activations, gradients; exponent and loops: none"
    )
    ships_in = "on normed embeddings: GLM-130B (exponent=0.5); MiniMax-Text-01 and M1 (norm_type=rms,norm_eps=1e-5)"
    extension = "exponent and loops are DeepLoop's constants alone, and in a pair our extrapolation."
    export_as = "post_ln"
    draws_weights = True
    connection = DeepNetConnection
    summation = "post"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        beta: Literal["paper", "torchscale"] = option("paper", "whose initialisation", for_training=True)
        exponent: float = option(
            0.25, "exponent of depth in both constants; 0.5: DeepLoop's (constants only)", minimum=0.01, maximum=1.0
        )
        loops: int = option(
            1, "times each layer counts in both constants; they run once (constants only)", minimum=1, maximum=10_000
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        quarter, sixteenth = ("(1/4)", "(1/16)") if o.exponent == 0.25 else ("exponent", "(exponent / 4)")
        times = "" if o.loops == 1 else "loops "
        n4 = "N^4" if o.loops == 1 else "(loops N)^4"
        return (
            f"x = LN(alpha {o.residual} + F(x))",
            f"encoder, pair: where alpha = 0.81 ({n4} {times}M)^{sixteenth}",
            f"decoder, pair: where alpha = (3 {times}M)^{quarter}",
            f"alone: where alpha = (2 {times}L)^{quarter}",
        )

    @torch.no_grad()
    def init_weights(self, layers: nn.ModuleList, embed_tokens: nn.Module | None) -> None:
        beta = alpha_beta(self.shape, self.config.exponent, self.config.loops)[1]
        if self.config.beta == "torchscale" and self.shape.cross and self.shape.stack == "encoder":
            beta = 1.15 * beta / 0.87
        matrices = matrices_of(layers)
        for name, module in layers.named_modules():
            if not isinstance(module, nn.Linear):
                continue
            scaled = not name.endswith(("q_proj", "k_proj"))
            if self.config.beta == "paper":
                for matrix in matrices[module]:
                    nn.init.xavier_normal_(matrix, gain=beta if scaled else 1.0)
            else:
                module.reset_parameters()
                if scaled:
                    for parameter in module.parameters():
                        parameter.mul_(beta)

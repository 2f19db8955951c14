"""CompleteP: Pre-LN with branches over L / L_base, so that the best rate does not depend on depth, nor on width.

::

    x ─┬─► LN ─► F ─► / m_L ─► + ─► x'      m_L = L / L_base
       └────────────────────────┘

Dey et al. 2025, "Don't be lazy: CompleteP enables compute-efficient deep transformers", Table 1. It is ``pre_ln`` with
``depth_mup=true``, an option of every additive wiring (``core/depth_mup.py`` says what it does to Adam), and with
``mup=true`` the rules for width of muP, m_N = d / base_width: matrices of the layers start as N(0, s^2 / m_N), s =
``init_std``, embeddings as N(0, s^2), biases at 0; scores of attention are over the channels of a head, not their root;
what leaves a decoder is divided by m_N; Adam's rate and eps of the layers' matrices are divided by m_N, their decay is
multiplied by it, and norms and biases do not decay. Checked against EleutherAI/nanoGPT-mup@6f8bc3b (``model.py``,
branch completep): forward, groups of the optimizer, standard deviations at the start. ``depth_mup=0.5`` is depth-muP.

Paper and code: the code has one eps for all parameters; this follows the paper, where it is that of the layers. fairseq
multiplies embeddings by sqrt(d), which muP does not: add ``--no-scale-embedding`` with ``mup=true``. By our choice
encoder and decoder have an m_L each, cross-attention has that of its layer, and an encoder's output is not divided. An
output matrix that is no embedding starts as elsewhere, N(0, 1 / d), where the paper has N(0, s^2).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, Stream
from fairseq_residuals.wirings.core.config import LARGEST, option
from fairseq_residuals.wirings.core.depth_mup import SPARED, UpdateScale
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection


class MuPConnection(PreLNConnection):
    """Divide scores by the channels of a head, and not by their root."""

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        if getattr(attn, "q_norm", None) is not None:
            raise UserError(
                "option mup has no effect where queries are normalised, as by qk_norm: leave out one of both"
            )
        root = self.site.head_dim**-0.5
        return super().attend(attn, query, key, value, s, edit_query=lambda q: root * q, **kwargs)


@torch.no_grad()
def draw_weights(layers: nn.ModuleList, embed_tokens: nn.Module | None, std: float, width_ratio: float) -> None:
    """Draw matrices of the layers from N(0, std^2 / m_N) and embeddings from N(0, std^2); biases become 0."""
    for module in layers.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std * width_ratio**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in () if embed_tokens is None else embed_tokens.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)
            if module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx])


@register_variant("complete_p")
class CompleteP(OptionalTopNorm):
    title = "CompleteP"
    paper = "Dey et al. 2025, Don't be lazy: CompleteP enables compute-efficient deep transformers"
    year = 2025
    code = "EleutherAI/nanoGPT-mup@6f8bc3b"
    verified = "authors' code, CompleteP and depth-muP, decoder alone: activations, gradients, optimizer groups, start"
    extension = "Each stack has its own m_L; an encoder's output is not divided by m_N."

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        depth_mup: bool | float = option(
            True, "as for every wiring; true: CompleteP, 0.5: depth-muP", minimum=0.01, maximum=1.0
        )
        mup: bool = option(False, "the rules for width, too: initialisation, scores, output, Adam's groups")
        base_width: int = option(
            256, "channels at which mup changes no variance and no rate", minimum=1, maximum=10**6, only_with="mup"
        )
        init_std: float = option(
            0.02,
            "standard deviation of weights at that width",
            minimum=1e-6,
            maximum=LARGEST,
            for_training=True,
            only_with="mup",
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        if not o.mup:
            return o.adds("F(LN(x))"), *cls.top(o)
        return (
            "attention: F with S = S / sqrt(d / heads)",
            o.adds("F(LN(x))"),
            "decoder: output LN(x) / (d / base_width)",
            "encoder: output LN(x)",
        )

    @property
    def width_ratio(self) -> float:
        """m_N; 1 where the rules for width are off."""
        return float(self.shape.dim / self.config.base_width) if self.config.mup else 1.0

    @classmethod
    def contradiction(cls, config: Any) -> str:
        if config.mup and (config.init != "fairseq" or config.init_scale != 1.0):
            return "options init and init_scale with mup=true, which draws the weights by its own rule"
        if config.mup and not config.final_norm:
            return "option final_norm=false with mup=true, which divides what the norm on top gives"
        return super().contradiction(config)

    def connect(self, site: Site) -> Connection:
        return MuPConnection(site) if self.config.mup else PreLNConnection(site)

    def close(self, s: Stream) -> Tensor:
        x = super().close(s)
        return x / self.width_ratio if self.config.mup and self.shape.stack == "decoder" else x

    def init_weights(self, layers: nn.ModuleList, embed_tokens: nn.Module | None) -> None:
        if self.config.mup:
            draw_weights(layers, embed_tokens, self.config.init_std, self.width_ratio)

    def update_scales(self, layers: nn.ModuleList) -> dict[nn.Parameter, UpdateScale]:
        scales = super().update_scales(layers)
        if not self.config.mup:
            return scales
        norm: Any = getattr(self, "norm", nn.Identity())  # no child of this variant where rewire has moved it
        # such as that of T5's relative positions, which is no matrix
        m, tables = self.width_ratio, {module.weight for module in layers.modules() if isinstance(module, nn.Embedding)}
        for parameter in dict.fromkeys((*layers.parameters(), *self.parameters(), *norm.parameters())):
            scale = UpdateScale(1 / m, m) if parameter.dim() >= 2 else SPARED
            scale = UpdateScale() if parameter in tables else scale
            eps = 1 / m if parameter in scales else 1.0
            scales[parameter] = scales.get(parameter, UpdateScale()).times(scale._replace(eps=eps))
        return scales

"""The rules of muP for width, m_N times the base: scores, initial weights, and Adam's settings of the layers."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.core.depth_mup import UpdateScale
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection


class MuPConnection(PreLNConnection):
    """Divide scores by the channels of a head, and not by their root."""

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        root = (self.site.dim // self.site.heads) ** -0.5
        return super().attend(attn, query, key, value, s, edit_query=lambda q: root * q, **kwargs)


@torch.no_grad()
def draw_weights(layers: nn.ModuleList, embed_tokens: nn.Module | None, std: float, width_ratio: float) -> None:
    """Draw matrices of the layers from N(0, std^2 / m_N) and embeddings from N(0, std^2); biases become 0."""
    for module in layers.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std * width_ratio**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    if isinstance(embed_tokens, nn.Embedding):
        nn.init.normal_(embed_tokens.weight, std=std)
        if embed_tokens.padding_idx is not None:
            nn.init.zeros_(embed_tokens.weight[embed_tokens.padding_idx])


def with_width(
    scales: dict[nn.Parameter, UpdateScale], parameters: Iterable[nn.Parameter], width_ratio: float
) -> dict[nn.Parameter, UpdateScale]:
    """Return ``scales``, which has the layers' parameters, with what width adds for ``parameters``."""
    m, scaled = width_ratio, dict(scales)
    for parameter in parameters:
        scale = UpdateScale(1 / m, m) if parameter.dim() >= 2 else UpdateScale(decay=0.0)
        eps = 1 / m if parameter in scales else 1.0
        scaled[parameter] = scaled.get(parameter, UpdateScale()).times(scale._replace(eps=eps))
    return scaled

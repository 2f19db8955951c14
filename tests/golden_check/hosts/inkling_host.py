"""Inkling-2's form of Attention Residuals (huggingface/transformers) among plain parts.

Its layers of full attention have three queries over depth and three norms, one for each of q, k and v.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.variants.attention_residuals import (
    AttentionResidualsConnection,
    SoftmaxOverDepth,
    sources_of,
)
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host
from tests.golden_check.hosts.plain_host import ATTENTION, plain
from tests.golden_check.rebuild import batch_first
from tests.golden_check.tolerances import SHIPPED


class ThreeReads(AttentionResidualsConnection):
    """Read queries, keys and values by a softmax over depth of their own."""

    over_depth: Any
    norm: Any

    def __init__(self, joint: AttentionResidualsConnection) -> None:
        super().__init__(joint.site)
        width = joint.site.dim
        self.over_depth = nn.ModuleDict({part: SoftmaxOverDepth(width, normed=True, scale=True) for part in "qkv"})
        self.norm = nn.ModuleDict({part: joint.site.new_norm() for part in "qkv"})

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        q, k, v = (self.norm[part](self.over_depth[part](s)) for part in "qkv")
        return q, s | {"keys": k, "values": v}

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        s = dict(s)
        return super().attend(attn, query, s.pop("keys"), s.pop("values"), s, **kwargs)


class Inkling(Host):
    """With a norm on the embedding."""

    def __init__(self, golden: Golden) -> None:
        super().__init__(golden)
        self.embed_norm = self.layers.wiring.shape.new_norm()
        for i in range(len(self.layers)):
            layer: Any = self.layers[i]
            if f"layers.{i}.self_attn_layer_norm.q.weight" in golden.parameters:
                layer.self_attn_connection = ThreeReads(layer.self_attn_connection)

    def _through(self, vectors: Tensor) -> Tensor:
        return super()._through(self.embed_norm(vectors))


def _part_queries(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give each of three queries, there rows of a matrix, a name of its own."""
    parted: dict[str, Tensor] = {}
    for name, value in values.items():
        if name.endswith("attention_input.query") and value.dim() == 2:
            parted |= {name.replace("query", f"{part}.query"): row for part, row in zip("qkv", value, strict=True)}
        else:
            parted[name] = value
    return parted


def newest_source(s: Stream) -> dict[str, Tensor]:
    """Return the sum of the current block."""
    return {"": batch_first(sources_of(s)[-1])}


RECIPES = {
    "inkling2_block_attnres": plain(
        "attention_residuals(norm=rms,values=normed,scale=true,block={sublayers})",
        "huggingface/transformers",
        (r"\.attention_input\.", ".self_attn_connection.over_depth."),
        (r"\.mlp_input\.", ".ffn_connection.over_depth."),
        (r"^final_input\.", "layers.wiring.over_depth."),
        (r"\.([qkv])_input_layernorm\.", r".self_attn_layer_norm.\1."),
        (r"\.post_attention_layernorm\.", ".final_layer_norm."),
        *ATTENTION,
        convert=_part_queries,
        model=Inkling,
        layer_outputs=newest_source,
        tolerances=SHIPPED,
    )
}

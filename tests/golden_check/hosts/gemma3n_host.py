"""Gemma 3n in Hugging Face's transformers: LAuReL within AltUp, inputs for each layer, bounded logits.

What a layer is given of each word is added, above it, to all streams of AltUp but the first.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from fairseq_residuals.wirings.core.base import RunLayer, Stream
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host, add_norm
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.llama_host import LLAMA
from tests.golden_check.hosts.scaled_residual_host import geglu
from tests.golden_check.tolerances import SHIPPED


class InputOfLayer(nn.Module):
    """Runs one layer, corrects the streams, and adds to them what the layer is given."""

    def __init__(self, host: Gemma3n, number: int) -> None:
        super().__init__()
        self.active = host.layers.wiring.config.active
        self.correct_output_scale = nn.Parameter(torch.zeros(host.dim))
        self.gate, self.gelu = nn.Linear(host.dim, host.input_width, bias=False), nn.GELU("tanh")
        self.projection = nn.Linear(host.input_width, host.dim, bias=False)
        self.norm = host.layers.wiring.shape.new_norm()
        self.corrected, self.given = partial(host.layers.wiring.corrected, number), lambda: host.inputs[:, :, number]

    def forward(self, layer: RunLayer, s: Stream) -> tuple[Stream, Tensor | None]:
        """As :meth:`Variant.evaluate`, of "streams" (T, B, A, C)."""
        corrected = self.corrected(layer(s)[0])
        gate = self.gelu(self.gate(self.correct_output_scale * corrected[..., self.active, :]))
        added = self.norm(self.projection(gate * self.given())).unsqueeze(-2)
        return s | {"streams": torch.cat([corrected[..., :1, :], corrected[..., 1:, :] + added], -2)}, None


class Gemma3n(Host):
    """The whole model; "inputs" (T, B, layers, channels) are those of the layers, of the batch that runs."""

    def __init__(self, golden: Golden) -> None:
        super().__init__(golden)
        self.input_width = golden.setting("hidden_size_per_layer_input")
        self.bound = golden.description["provenance"]["final_logit_softcapping"]
        self.dim, self.depth = self.layers.shape.dim, len(self.layers)
        new_norm, width = self.layers.wiring.shape.new_norm, self.depth * self.input_width
        self.inputs = torch.zeros(0)
        self.embed_per_layer = nn.Embedding(len(self.embed_tokens.weight), width)
        self.input_projection, self.input_norm = nn.Linear(self.dim, width, bias=False), new_norm(self.input_width)
        for i in range(self.depth):
            layer: Any = self.layers[i]
            layer.evaluate = InputOfLayer(self, i)
            layer.self_attn.scaling = 1.0
            head = layer.self_attn.head_dim
            add_norm(layer.self_attn.v_proj, nn.RMSNorm(head, 1e-6, elementwise_affine=False), head)
        wiring: Any = self.layers.wiring
        wiring.after_layer = lambda i, s: wiring.predicted(i + 1, s["streams"]) if i + 1 < self.depth else s

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """As :meth:`Host.forward`."""
        outputs = super().forward(inputs)
        self.inputs = torch.zeros(0)
        return outputs | {"logits": self.bound * (outputs["logits"] / self.bound).tanh()}

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, C)"""
        words = super().embed(tokens) * self.dim**0.5
        own = self.embed_per_layer(tokens) * self.input_width**0.5
        shape = (self.depth, self.input_width)
        projected = self.input_norm((self.input_projection(words) * self.dim**-0.5).unflatten(-1, shape))
        self.inputs = ((projected + own.unflatten(-1, shape)) * 2**-0.5).transpose(0, 1)
        return words


GEMMA = Authors(
    "huggingface/transformers",
    LLAMA.convert,
    (
        (r"^embed_tokens_per_layer\.", "embed_per_layer."),
        (r"^per_layer_model_projection\.", "input_projection."),
        (r"^per_layer_projection_norm\.", "input_norm."),
        (r"^altup_projections\.(\d+)\.weight", r"layers.wiring.opening.\1"),
        (r"^altup_unembed_projections\.(\d+)\.weight", r"layers.wiring.closing.\1"),
        (r"^layers\.(\d+)\.altup\.router_norm\.", r"layers.wiring.router_norms.\1."),
        (r"^layers\.(\d+)\.altup\.modality_router\.weight", r"layers.wiring.router.\1"),
        (r"^layers\.(\d+)\.altup\.prediction_coefs\.weight", r"layers.wiring.predict.\1"),
        (r"^layers\.(\d+)\.altup\.correction_coefs\.weight", r"layers.wiring.correct.\1"),
        (r"\.altup\.correct_output_scale", ".evaluate.correct_output_scale"),
        (r"\.per_layer_input_gate\.", ".evaluate.gate."),
        (r"\.per_layer_projection\.", ".evaluate.projection."),
        (r"\.post_per_layer_input_norm\.", ".evaluate.norm."),
        (r"\.laurel\.linear_left\.", ".self_attn_connection.low_rank.down."),
        (r"\.laurel\.linear_right\.", ".self_attn_connection.low_rank.up."),
        (r"\.laurel\.post_laurel_norm\.", ".self_attn_connection.low_rank_norm."),
        *LLAMA.renames,
    ),
)

RECIPES = {
    "laurel_altup_gemma3n": HostRecipe(
        "laurel_gemma(norm=rms,rank={laurel_rank},n={altup_num_inputs},active={altup_active_idx})",
        GEMMA,
        activation=geglu,
        rotary="half",
        query_key_norm="per_head",
        layer_outputs=lambda s: {"": s["streams"].transpose(0, 1)},
        tolerances=SHIPPED,
        model=Gemma3n,
    )
}

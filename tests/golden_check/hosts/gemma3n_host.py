"""Gemma 3n in Hugging Face's transformers: LAuReL within AltUp, inputs for each layer, bounded logits.

AltUp (Baykal et al. 2023, "Alternating Updates for Efficient Transformers") keeps A streams, of which a layer runs on
one. From what a router makes of that one, all are predicted below the layer, and corrected above it. Then what a layer
is given of each word is added to all streams but the first.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from fairseq_residuals.wirings.core.base import RunLayer, Stream
from fairseq_residuals.wirings.variants._streams import stack_streams, stream_keys
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host, add_norm
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.hyper_connections_host import streams_side_by_side
from tests.golden_check.hosts.llama_host import LLAMA
from tests.golden_check.hosts.scaled_residual_host import geglu
from tests.golden_check.tolerances import SHIPPED

LEAST_MEAN_SQUARE = 1e-5
gelu_tanh = partial(gelu, approximate="tanh")


class AltUp(nn.Module):
    """What one layer has of it, and of the inputs for each layer."""

    def __init__(self, host: Gemma3n, number: int) -> None:
        super().__init__()
        dim, n, new_norm = host.dim, host.n, host.layers.wiring.shape.new_norm
        self.n, self.active = n, host.active
        self.router_norm, self.modality_router = new_norm(), nn.Linear(dim, n, bias=False)
        self.prediction_coefs, self.correction_coefs = (nn.Linear(n, m, bias=False) for m in (n * n, n))
        self.correct_output_scale = nn.Parameter(torch.zeros(dim))
        self.gate = nn.Linear(dim, host.input_width, bias=False)
        self.projection, self.norm = nn.Linear(host.input_width, dim, bias=False), new_norm()
        self.given = partial(host.given, number)

    def route(self, x: Tensor) -> Tensor:
        """(T, B, C) -> (T, B, A)"""
        return self.modality_router(self.router_norm(x) / x.size(-1)).tanh()  # type: ignore[no-any-return]

    def forward(self, layer: RunLayer, s: Stream) -> tuple[Stream, Tensor | None]:
        """As :meth:`Variant.evaluate`, of streams "x", "x1", ... (T, B, C)."""
        streams = stack_streams(s, self.n)
        weights = self.prediction_coefs(self.route(streams[..., self.active, :])).unflatten(-1, (self.n, self.n))
        predicted = streams + weights @ streams
        own = predicted[..., self.active, :]
        z = layer({"x": own})[0]["x"]
        corrected = predicted + (1 + self.correction_coefs(self.route(z))).unsqueeze(-1) * (z - own).unsqueeze(-2)
        gate = gelu_tanh(self.gate(self.correct_output_scale * corrected[..., self.active, :]))
        first, *others = corrected.unbind(-2)
        added = self.norm(self.projection(gate * self.given()))
        return dict(zip(stream_keys(self.n), [first, *(x + added for x in others)], strict=True)), None


class Gemma3n(Host):
    """The whole model; "inputs" (T, B, layers, channels) are those of the layers, of the batch that runs."""

    def __init__(self, golden: Golden) -> None:
        super().__init__(golden)
        provenance = golden.description["provenance"]
        self.n, self.input_width = golden.setting("altup_num_inputs"), golden.setting("hidden_size_per_layer_input")
        self.active, self.bound = provenance["altup_active_idx"], provenance["final_logit_softcapping"]
        self.dim, self.depth = self.layers.shape.dim, len(self.layers)
        new_norm, width = self.layers.wiring.shape.new_norm, self.depth * self.input_width
        self.inputs = torch.zeros(0)
        self.embed_per_layer = nn.Embedding(len(self.embed_tokens.weight), width)
        self.input_projection, self.input_norm = nn.Linear(self.dim, width, bias=False), new_norm(self.input_width)
        self.projections, self.unprojections = (
            nn.ModuleList(nn.Linear(self.dim, self.dim, bias=False) for _ in range(self.n - 1)) for _ in range(2)
        )
        for i in range(self.depth):
            layer: Any = self.layers[i]
            layer.evaluate = AltUp(self, i)
            layer.self_attn.scaling = 1.0
            head = layer.self_attn.head_dim
            add_norm(layer.self_attn.v_proj, nn.RMSNorm(head, 1e-6, elementwise_affine=False), head)
        wiring: Any = self.layers.wiring
        wiring.open, wiring.close = self.opened, self.closed

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

    def given(self, i: int) -> Tensor:
        """Return what layer ``i`` is given, (T, B, channels)."""
        return self.inputs[:, :, i]

    def opened(self, x: Tensor) -> Stream:
        """As :meth:`Variant.open`."""
        others = [_as_large_as(x, projection(x)) for projection in self.projections]
        return dict(zip(stream_keys(self.n), [x, *others], strict=True))

    def closed(self, s: Stream) -> Tensor:
        """As :meth:`Variant.close`."""
        x, *others = stack_streams(s, self.n).unbind(-2)
        back = [_as_large_as(x, u(other)) for u, other in zip(self.unprojections, others, strict=True)]
        return self.layers.wiring.norm(torch.stack([x, *back]).mean(0))  # type: ignore[no-any-return,operator]


def _as_large_as(x: Tensor, y: Tensor) -> Tensor:
    """Rescale y to the root mean square of x, (..., C) each."""
    squares = (z.square().mean(-1, keepdim=True) for z in (x, y))
    target, own = squares
    return y * (target / own.clamp_min(LEAST_MEAN_SQUARE)).sqrt()


GEMMA = Authors(
    "huggingface/transformers",
    LLAMA.convert,
    (
        (r"^embed_tokens_per_layer\.", "embed_per_layer."),
        (r"^per_layer_model_projection\.", "input_projection."),
        (r"^per_layer_projection_norm\.", "input_norm."),
        (r"^altup_projections\.", "projections."),
        (r"^altup_unembed_projections\.", "unprojections."),
        (r"\.altup\.", ".evaluate."),
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
        "laurel_gemma(norm=rms,rank={laurel_rank})",
        GEMMA,
        activation=geglu,
        rotary="half",
        query_key_norm="per_head",
        layer_outputs=streams_side_by_side,
        tolerances=SHIPPED,
        model=Gemma3n,
    )
}

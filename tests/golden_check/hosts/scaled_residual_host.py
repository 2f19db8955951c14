"""Models of LLaMA's parts in Hugging Face's transformers whose residuals are scaled: Granite, Gemma 4, Trinity."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from fairseq_residuals.wirings.blocks.feed_forward import Gated
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host, linear
from tests.golden_check.hosts.llama_host import LLAMA, llama
from tests.golden_check.hosts.surroundings import (
    by_root_of_width,
    layers_of,
    logits_by,
    number,
    plain_norms,
    scaled_embeddings,
    scaled_input,
    scaled_scores,
)
from tests.golden_check.tolerances import SHIPPED

geglu = Gated(partial(gelu, approximate="tanh"))
"""The activation of the FFN in Gemma, GELU by its fit with tanh."""


def _gated_heads(host: Host, golden: Golden) -> None:
    """Multiply what the heads give by a sigmoid of what attention was fed."""
    dim = host.layers.shape.dim
    for i, layer in enumerate(layers_of(host)):
        gate = linear(golden, f"layers.{i}.self_attn.out_proj.gate", dim, dim)
        projection = layer.self_attn.out_proj
        projection.gate = gate  # type: ignore[union-attr]
        Gate(gate).between(layer.self_attn.q_proj, projection)  # type: ignore[arg-type]


class Gate:
    """A gate on the input of one module, by the input of another that runs before it."""

    def __init__(self, gate: nn.Module) -> None:
        self.gate = gate

    def between(self, first: nn.Module, second: nn.Module) -> None:
        """Compute the gate from the input of ``first``, and multiply that of ``second`` by it."""
        first.register_forward_pre_hook(self._keep)
        second.register_forward_pre_hook(self._multiply)

    def _keep(self, module: nn.Module, args: tuple[Tensor]) -> None:
        (self.fed,) = args

    def _multiply(self, module: nn.Module, args: tuple[Tensor]) -> Tensor:
        fed = self.__dict__.pop("fed")
        return args[0] * torch.sigmoid(self.gate(fed))


shipped = partial(llama, tolerances=SHIPPED)

RECIPES = {
    "granite": shipped(
        "residual_multiplier(norm=rms,multiplier={residual_multiplier})",
        surroundings=(
            scaled_input("embedding_multiplier"),
            scaled_scores("attention_multiplier"),
            logits_by(lambda x, golden: x / number(golden, "logits_scaling")),
        ),
    ),
    "gemma4_layer_scalar": shipped(
        "layer_scalar(norm=rms)",
        authors=Authors(
            LLAMA.repository, LLAMA.convert, (*LLAMA.renames, (r"\.layer_scalar$", ".ffn_connection.scalar"))
        ),
        activation=geglu,
        # the file has what it was drawn as
        initial_values=False,
        query_key_norm="per_head",
        surroundings=(scaled_embeddings, scaled_scores(1.0), plain_norms("self_attn.v_proj", eps=1e-6)),
    ),
    "afmoe_dualnorm": shipped(
        "sandwich_ln(norm=rms)",
        authors=Authors(
            LLAMA.repository,
            LLAMA.convert,
            (
                (r"\.self_attn\.gate_proj\.", ".self_attn.out_proj.gate."),
                *LLAMA.renames,
                (r"\.input_layernorm\.", ".self_attn_layer_norm."),
                (r"\.post_attention_layernorm\.", ".self_attn_out_layer_norm."),
                (r"\.pre_mlp_layernorm\.", ".final_layer_norm."),
                (r"\.post_mlp_layernorm\.", ".final_out_layer_norm."),
            ),
        ),
        rotary="",
        query_key_norm="per_head",
        eps=1e-5,
        surroundings=(scaled_input(by_root_of_width), _gated_heads),
    ),
}

"""T5Gemma in Hugging Face's transformers: an encoder and a decoder wired as a sandwich."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from fairseq_residuals.wirings.blocks.attention import Rotary
from fairseq_residuals.wirings.core.attention import open_attention
from fairseq_residuals.wirings.core.base import Connection
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import PairHost
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.llama_host import LLAMA
from tests.golden_check.hosts.released_2026_host import gains_themselves
from tests.golden_check.hosts.scaled_residual_host import geglu
from tests.golden_check.tolerances import SHIPPED

MOST_SCORE, MOST_LOGIT = 50.0, 30.0
"""Bounds of scores and logits, by tanh."""

T5_GEMMA = Authors(
    "huggingface/transformers",
    renames=(
        (r"^model\.", ""),
        (r"^lm_head\.out_proj\.", "output_projection."),
        (r"^(encoder|decoder)\.embed_tokens\.", r"\1_embed_tokens."),
        (r"^(encoder|decoder)\.layers\.", r"\1."),
        (r"^(encoder|decoder)\.norm\.", r"\1.wiring.norm."),
        (r"\.cross_attn\.", ".encoder_attn."),
        *LLAMA.renames,
        (r"\.pre_self_attn_layernorm\.", ".self_attn_layer_norm."),
        (r"\.post_self_attn_layernorm\.", ".self_attn_out_layer_norm."),
        (r"\.pre_cross_attn_layernorm\.", ".encoder_attn_layer_norm."),
        (r"\.post_cross_attn_layernorm\.", ".encoder_attn_out_layer_norm."),
        (r"\.pre_feedforward_layernorm\.", ".final_layer_norm."),
        (r"\.post_feedforward_layernorm\.", ".final_out_layer_norm."),
    ),
)


class Pair(PairHost):
    """An encoder and a decoder with embeddings and a head of their own."""

    def __init__(self, golden: Golden) -> None:
        super().__init__(golden, geglu)
        self.pad = golden.pad
        self.dim = self.encoder.shape.dim
        source, target = (len(golden.parameters[f"{side}_embed_tokens.weight"]) for side in ("encoder", "decoder"))
        self.encoder_embed_tokens = nn.Embedding(source, self.dim)
        self.decoder_embed_tokens = nn.Embedding(target, self.dim)
        self.output_projection = nn.Linear(self.dim, target, bias=False)
        for connection in (module for module in self.modules() if isinstance(module, Connection)):
            connection.attention = partial(open_attention, edit_scores=bounded_scores)
        for stack in (self.encoder, self.decoder):
            for i in range(len(stack)):
                stack[i].self_attn.rotary = Rotary()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the model.

        Args:
            inputs: ``src_tokens`` (B, S), ``prev_output_tokens`` (B, T).

        Returns:
            enc_embed, encoder_out, dec_embed, decoder_features and logits.
        """
        padding = inputs["src_tokens"].eq(-1 if self.pad is None else self.pad)
        source = self.encoder_embed_tokens(inputs["src_tokens"])
        target = self.decoder_embed_tokens(inputs["prev_output_tokens"])
        memory, features = self.through(self._scaled(source), padding, self._scaled(target))
        logits = MOST_LOGIT * torch.tanh(self.output_projection(features) / MOST_LOGIT)
        return {
            "enc_embed": source,
            "encoder_out": memory,
            "dec_embed": target,
            "decoder_features": features,
            "logits": logits,
        }

    def _scaled(self, embedded: Tensor) -> Tensor:
        """(B, T, C) -> (T, B, C)"""
        return self.dim**0.5 * embedded.transpose(0, 1)


def bounded_scores(scores: Tensor) -> Tensor:
    """Bound the scores of attention, of any shape."""
    return MOST_SCORE * torch.tanh(scores / MOST_SCORE)


RECIPES = {
    "t5gemma_sandwich_encdec": HostRecipe(
        "sandwich_ln(norm=rms)", T5_GEMMA, model=Pair, adapt=gains_themselves("norm"), tolerances=SHIPPED
    )
}

"""Encoder-decoder models: translation and summarisation."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models import register_model
from fairseq.models.transformer import TransformerModel
from torch import Tensor

from fairseq_residuals.plugin.models.args import Args, for_stock_build
from fairseq_residuals.plugin.models.builder import forget_files, wire_model, wirings_of
from fairseq_residuals.plugin.models.families import Family, add_plugin_flags
from fairseq_residuals.wirings.core.errors import UserError

TRANSLATION = Family(
    model="residual_transformer",
    stacks=("encoder", "decoder"),
    add_args=TransformerModel.add_args,
    extra_keys=frozenset({"decoder_input_dim", "decoder_output_dim", "max_source_positions", "max_target_positions"}),
    refused={"adaptive_input": "adaptive input in an encoder-decoder model"},
)


@register_model(TRANSLATION.model)
class ResidualTransformer(TransformerModel):
    """fairseq's ``transformer`` with the layers of both stacks wired by variants."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        super().add_args(parser)
        add_plugin_flags(parser)

    @classmethod
    def build_model(cls, args: Args, task: Any) -> ResidualTransformer:
        """Let fairseq build the model, then wire its layers anew.

        Raises:
            UserError: settings that contradict each other or that the plugin does not carry.
        """
        wirings = wirings_of(args)
        stock = for_stock_build(args)
        try:
            model = super().build_model(stock, task)
        except ValueError as error:
            raise UserError(str(error)) from error
        given = {stack: _signs(model, stack) for stack in wirings if getattr(stock, f"{stack}_embed_path", None)}
        forget_files(args, "encoder_embed_path", "decoder_embed_path")
        wire_model(model, args, wirings)
        for stack, signs in given.items():
            # a wiring may scale them, as T-Fixup does
            if not torch.equal(_signs(model, stack), signs):
                raise UserError(
                    f"--{stack}-embed-path gives embeddings that the wiring {wirings[stack].name} draws anew, by an"
                    " option such as init=lipschitz; leave out the file or the option"
                )
        return model


def _signs(model: Any, stack: str) -> Tensor:
    return getattr(model, stack).embed_tokens.weight.detach().sign()  # type: ignore[no-any-return]

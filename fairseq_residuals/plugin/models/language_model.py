"""Decoder-only models: language modelling, with adaptive input and softmax where asked for."""

from __future__ import annotations

from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig

from fairseq_residuals.plugin.models.args import Args, for_stock_build
from fairseq_residuals.plugin.models.builder import wire_model, wirings_of
from fairseq_residuals.plugin.models.families import Family, add_plugin_flags
from fairseq_residuals.wirings.core.errors import UserError

FROM_THE_TASK = ("max_target_positions", "tokens_per_sample", "add_bos_token")


def _stock_flags(parser: Any) -> None:
    gen_parser_from_dataclass(parser, TransformerLanguageModelConfig(), delete_default=True)


LANGUAGE_MODEL = Family(
    model="residual_transformer_lm",
    stacks=("decoder",),
    add_args=_stock_flags,
    extra_keys=frozenset({*FROM_THE_TASK, "tpu"}),
    refused={"encoder_word_dropout": "word dropout in an encoder, of which a language model has none,"},
)


@register_model(LANGUAGE_MODEL.model)
class ResidualTransformerLM(TransformerLanguageModel):
    """fairseq's ``transformer_lm`` with its layers wired by a variant.

    Post-LN is Post-LN here, although fairseq's own architectures force Pre-LN.
    """

    @classmethod
    def add_args(cls, parser: Any) -> None:
        _stock_flags(parser)
        add_plugin_flags(parser)

    @classmethod
    def build_model(cls, args: Args, task: Any) -> ResidualTransformerLM:
        """Let fairseq build the model, then wire its layers anew.

        Raises:
            UserError: settings that contradict each other or that the plugin does not carry.
        """
        wirings = wirings_of(args)
        stock = for_stock_build(args)
        for key, default in vars(TransformerLanguageModelConfig()).items():
            if not hasattr(stock, key) and not str(default).startswith("${"):
                setattr(stock, key, default)
        if not hasattr(task, "args"):
            raise UserError(f"--arch {args.arch} is a language model, which --task language_modeling trains")
        for key in FROM_THE_TASK:
            if getattr(stock, key, None) is None:
                setattr(stock, key, getattr(task.args, key, None))
        try:
            model = super().build_model(stock, task)
        except AssertionError as error:
            if str(error):  # of one flag by itself
                raise
            raise UserError(
                "--tie-adaptive-weights needs --adaptive-input, equal cutoffs and factors of input and softmax, and"
                " equal input and output dimensions"
            ) from error
        wire_model(model, args, wirings)
        return model

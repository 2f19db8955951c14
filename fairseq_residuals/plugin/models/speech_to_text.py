"""Speech recognition and translation: convolutional front end, encoder, decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models import register_model
from fairseq.models.speech_to_text import S2TTransformerModel
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.fairseq_config import computed_otherwise, flat_settings, wiring_of_any
from fairseq_residuals.plugin.models.args import Args, for_stock_build
from fairseq_residuals.plugin.models.builder import forget_files, wire_model, wirings_of
from fairseq_residuals.plugin.models.families import Family, add_plugin_flags
from fairseq_residuals.wirings.core.errors import UserError

FROM_THE_TASK = ("max_source_positions", "max_target_positions")
COMPUTING_AN_ENCODER = ("activation_fn", "encoder_attention_heads", "no_scale_embedding")


def _add_flags(parser: Any) -> None:
    S2TTransformerModel.add_args(parser)
    parser.add_argument("--encoder-layerdrop", type=float, metavar="P", help="LayerDrop probability for encoder")
    parser.add_argument("--decoder-layerdrop", type=float, metavar="P", help="LayerDrop probability for decoder")
    parser.add_argument(
        "--checkpoint-activations", action="store_true", help="recompute each layer in the backward pass"
    )


def _in_its_precision(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return sound in the precision of the parameters: fairseq's generation gives it in single precision."""
    return inputs[0].to(next(module.parameters()).dtype), *inputs[1:]


SPEECH = Family(
    model="residual_s2t_transformer",
    stacks=("encoder", "decoder"),
    add_args=_add_flags,
    extra_keys=frozenset(
        {
            *FROM_THE_TASK,
            "input_feat_per_channel",
            "input_channels",
            "speaker_to_id",
            "ctc_weight",
            "tgt_dict_size",
            # set when the settings are completed, which may happen twice
            "no_decoder_final_norm",
        }
    ),
    refused={"encoder_word_dropout": "word dropout in an encoder whose input is sound"},
)


@register_model(SPEECH.model)
class ResidualS2TTransformer(S2TTransformerModel):
    """fairseq's ``s2t_transformer`` with the layers of both stacks wired by variants."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        _add_flags(parser)
        add_plugin_flags(parser)

    @classmethod
    def build_model(cls, args: Args, task: Any) -> ResidualS2TTransformer:
        """Let fairseq build the model, then wire its layers anew.

        Raises:
            UserError: settings that contradict each other or that the plugin does not carry.
        """
        wirings = wirings_of(args)
        stock = for_stock_build(args)
        if not hasattr(stock, "input_feat_per_channel"):
            raise UserError(f"--arch {stock.arch} is for speech, which --task speech_to_text reads")
        for key in FROM_THE_TASK:
            if getattr(stock, key, None) is None:
                setattr(stock, key, getattr(task.args, key))
        # loaded below, into the wired stack whose norms it may hold
        pretrained = getattr(stock, "load_pretrained_encoder_from", None)
        stock.load_pretrained_encoder_from = None
        model = super().build_model(stock, task)
        wire_model(model, args, wirings)
        model.encoder.subsample.register_forward_pre_hook(_in_its_precision)
        if pretrained:
            if not Path(pretrained).exists():
                raise UserError(f"--load-pretrained-encoder-from: there is no file {pretrained}")
            state = checkpoint_utils.load_checkpoint_to_cpu(pretrained)
            before = flat_settings(state)
            then = wiring_of_any(before | {"decoder_residual": None, "decoder_normalize_before": None})
            differing = computed_otherwise(before, {key: getattr(stock, key) for key in COMPUTING_AN_ENCODER})
            if then not in ("", wirings["encoder"].computes):
                differing = "the wiring", then, wirings["encoder"].computes
            if differing is not None:
                raise UserError(
                    f"--load-pretrained-encoder-from: the encoder of {pretrained} was trained with {differing[0]}"
                    f" {differing[1]}, and this is {differing[2]}"
                )
            names = [name for name in state["model"] if name.startswith("encoder.")]
            model.encoder.load_state_dict({name.removeprefix("encoder."): state["model"][name] for name in names})
            forget_files(args, "load_pretrained_encoder_from")
        return model

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **kwargs: Any) -> Any:
        """Run the model as fairseq's, which has no ``features_only``: other arguments go to the decoder."""
        encoder_out = self.encoder(src_tokens=src_tokens, src_lengths=src_lengths)
        return self.decoder(prev_output_tokens=prev_output_tokens, encoder_out=encoder_out, **kwargs)

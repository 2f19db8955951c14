"""Models of this package as models of transformers: ``AutoModelForSeq2SeqLM``, ``AutoModelForCausalLM``.

Beam search gives what ``fairseq-generate`` gives: no padding is generated, and the last position that there is room for
is the end of the sentence.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, LogitsProcessor, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.blocks.halves import Encoder, build_halves, open_all_attention
from fairseq_residuals.wirings.blocks.settings import EOS, PAD, ModelSettings
from fairseq_residuals.wirings.utils.precision import at_least_fp32

CACHE = "cache" if "cache" in (field.name for field in fields(CausalLMOutputWithPast)) else "past_key_values"
"""Name of the cache among arguments and results; transformers has the first one since 5.24."""


class ResidualConfig(PreTrainedConfig):
    """The settings of a model, beside those that transformers has for all models."""

    model_type = "fairseq_residuals"
    model_settings: dict[str, Any] | None = None
    """Settings of the model, as :meth:`ModelSettings.to_json` has them."""


class GenerationCache(DecoderCache):
    """Keys and values of the tokens so far, as transformers' beam search asks for them."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on with other rows."""
        self.reorder(beam_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many positions are kept."""
        return self.positions


class FairseqSearch(LogitsProcessor):
    """A processor of logits that forbids what fairseq's search forbids and transformers' does not."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Forbid padding, and at the last position everything but the end."""
        scores[:, PAD] = -torch.inf
        if input_ids.size(1) >= self.max_length - 1:
            end = scores[:, EOS].clone()
            scores = torch.full_like(scores, -torch.inf)
            scores[:, EOS] = end
        return scores


def _shared(model: nn.Module) -> dict[str, str]:
    """Return further names of parameters that layers share, each with the first: transformers saves one of them."""
    first: dict[nn.Parameter, str] = {}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[own] for name, own in every if first.setdefault(own, name) != name}


class ResidualModel(PreTrainedModel, GenerationMixin):
    """The base of both kinds of model."""

    config_class = ResidualConfig
    _no_split_modules = ("ResidualLayer",)

    def __init__(self, config: ResidualConfig) -> None:
        super().__init__(config)
        settings = ModelSettings.of_json(config.model_settings)
        encoder, self.decoder = build_halves(settings)
        if encoder is not None:
            self.encoder = encoder
        open_all_attention(self)
        self._tied_weights_keys = settings.tied | _shared(self)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Fill the buffers of a module that no file holds; all parameters come from the file.

        transformers builds models without memory, and leaves such buffers empty.
        """
        if reset_buffers := getattr(module, "reset_buffers", None):
            reset_buffers()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        # the cache is made by the first call
        return False

    def _get_logits_processor(self, generation_config: Any, *args: Any, **kwargs: Any) -> Any:
        processors = super()._get_logits_processor(generation_config, *args, **kwargs)
        # where no end may come at the last position either, it is not the only one allowed
        longest = max(generation_config.max_length, (generation_config.min_length or 0) + 1)
        # first, as sampling drops improbable words, of which the end may be one where it is the only one allowed
        processors.insert(0, FairseqSearch(longest))
        return processors

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of what ``input_ids`` are."""
        return self.get_encoder().embed_tokens if self.config.is_encoder_decoder else self.decoder.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """Return the output matrix."""
        return self.decoder.output_projection  # type: ignore[no-any-return]

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of the next call: the tokens that are not in the cache.

        By the name ``kwargs`` transformers knows that what else ``forward`` takes, such as labels, may be given.
        """
        cache: GenerationCache | None = kwargs.get(CACHE)
        new = input_ids if cache is None else input_ids[:, cache.positions :]
        pair = {"decoder_input_ids": new, "encoder_outputs": encoder_outputs}
        return {
            **(pair if self.config.is_encoder_decoder else {"input_ids": new}),
            CACHE: cache,
            "attention_mask": attention_mask,
            "use_cache": use_cache,
        }

    def _loss(self, logits: Tensor, labels: Tensor | None, items: Tensor | int | None) -> Tensor | None:
        if labels is None:
            return None
        # items are those of several batches, whose losses Trainer adds up
        of = "mean" if items is None else "sum"
        loss = nn.functional.cross_entropy(at_least_fp32(logits).flatten(0, 1), labels.flatten(), reduction=of)
        return loss if items is None else loss / items


def _padded(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Return tokens with padding where a mask of transformers (0 at padding) says so."""
    return tokens if mask is None else tokens.masked_fill(mask[:, -tokens.size(1) :].eq(0), PAD)


class EncoderForTransformers(nn.Module):
    """The encoder with the arguments and results that ``generate`` knows."""

    encoder: Encoder

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        # no submodule: parameters have one name
        self.__dict__["encoder"] = encoder
        self.embed_tokens = encoder.embed_tokens

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """Encode (B, S) to (B, S, C)."""
        return BaseModelOutput(last_hidden_state=self.encoder(_padded(input_ids, attention_mask)).transpose(0, 1))


class ResidualForSeq2Seq(ResidualModel):
    """An encoder-decoder model."""

    def get_encoder(self, *_: Any, **__: Any) -> nn.Module:
        """Return the encoder as ``generate`` calls it."""
        return EncoderForTransformers(self.encoder)

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Generate as transformers does; without a mask, the source's padding is masked as in ``forward``."""
        words = kwargs.get("input_ids", inputs)
        if words is not None and kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = words.ne(PAD).long()
        return super().generate(inputs, *args, **kwargs)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the labels moved by one; transformers' collator asks for them, and smoothing of labels needs them."""
        start = torch.full_like(labels[:, :1], EOS)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1].eq(-100), PAD)], 1)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: GenerationCache | None = None,
        past_key_values: GenerationCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """Return logits (B, T, words), with arguments as transformers' models have them.

        Args:
            cache: what it has been since transformers 5.24, and ``past_key_values`` before.
            decoder_input_ids: (B, T), which begin with the end of a sentence; by default the labels moved by one.
            labels: (B, T), -100 where there is no loss.
            num_items_in_batch: what Trainer has the sum of losses divided by, where it accumulates gradients.
        """
        if encoder_outputs is None:
            if input_ids is None:
                raise ValueError("the model needs input_ids, or encoder_outputs")
            if attention_mask is None:
                attention_mask = input_ids.ne(PAD).long()
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if decoder_input_ids is None:
            raise ValueError("the model needs decoder_input_ids, or labels")
        memory = encoder_outputs[0].transpose(0, 1)
        cache = past_key_values or cache or (GenerationCache() if use_cache else None)
        logits = self.decoder(
            _padded(decoder_input_ids, decoder_attention_mask),
            memory,
            None if attention_mask is None else attention_mask.eq(0),
            cache,
        )
        return Seq2SeqLMOutput(
            loss=self._loss(logits, labels, num_items_in_batch),
            logits=logits,
            encoder_last_hidden_state=encoder_outputs[0],
            **{CACHE: cache},
        )


class ResidualForCausalLM(ResidualModel):
    """A language model."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: GenerationCache | None = None,
        past_key_values: GenerationCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits (B, T, words), with arguments as transformers' models have them.

        Args:
            labels: (B, T), the input itself, -100 where there is no loss.
            num_items_in_batch: as of an encoder-decoder model.
        """
        cache = past_key_values or cache or (GenerationCache() if use_cache else None)
        logits = self.decoder(_padded(input_ids, attention_mask), cache=cache)
        loss = None if labels is None else self._loss(logits[:, :-1], labels[:, 1:], num_items_in_batch)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: cache})

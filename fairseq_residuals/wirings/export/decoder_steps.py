"""A model as two graphs without state: what runs once for a sentence, and a decoder's step with its cache as tensors.

::

    encoder:   source (B, S)                       -> memory_keys, memory_values (layers, B, H, S, channels of a head)
    decoder:   tokens (B, T), keys, values (layers, B, H, P, channels of a head)
               [, memory_keys, memory_values, source_padding (B, S)]
                                                   -> logits (B, T, words), keys, values (of P + T positions)

A language model is a decoder alone. A step may take several tokens (a prompt), each of which sees those before it; rows
of one batch have equally many. P is 0 at the beginning.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.blocks.halves import Decoder
from fairseq_residuals.wirings.blocks.models import TransformerModel
from fairseq_residuals.wirings.blocks.settings import EOS, PAD
from fairseq_residuals.wirings.core.attention import KeysValues

MEMORY = ("memory_keys", "memory_values")
CACHE = ("keys", "values")


class EncoderGraph(nn.Module):
    """The encoder, and of each decoder layer the keys and values that it reads from it."""

    def __init__(self, model: TransformerModel) -> None:
        super().__init__()
        assert model.encoder is not None
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) -> keys, values, each (layers, B, H, S, channels of a head)"""
        # what a first step would keep; the step itself is no part of the graph, since nothing of it is returned
        cache = DecoderCache()
        self.decoder(torch.full_like(source[:, :1], EOS), self.encoder(source), source.eq(PAD), cache)
        memories = [cache.memories[layer.encoder_attn] for layer in _layers(self.decoder)]
        return torch.stack([memory.keys for memory in memories]), torch.stack([m.values for m in memories])


class DecoderGraph(nn.Module):
    """Some positions of a decoder after those in the cache; a language model has no memory."""

    def __init__(self, model: TransformerModel) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(
        self,
        tokens: Tensor,
        keys: Tensor,
        values: Tensor,
        memory_keys: Tensor | None = None,
        memory_values: Tensor | None = None,
        source_padding: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (B, T, words) and the cache of P + T positions."""
        layers, cache, memory = _layers(self.decoder), DecoderCache(), None
        cache.positions = keys.size(3)
        pairs = zip(keys.unbind(), values.unbind(), strict=True)
        cache.words = {layer.self_attn: pair for layer, pair in zip(layers, pairs, strict=True)}
        if memory_keys is not None and memory_values is not None:
            for layer, k, v in zip(layers, memory_keys.unbind(), memory_values.unbind(), strict=True):
                cache.memories[layer.encoder_attn] = KeysValues(k, v, None, source_padding)
            # read nowhere, since what every layer reads of it is in the cache
            memory = keys.new_zeros(1, 1, layers[0].encoder_attn.kdim)
        logits = self.decoder(tokens, memory, source_padding, cache)
        new_keys, new_values = zip(*(cache.words[layer.self_attn] for layer in layers), strict=True)
        return logits, torch.stack(new_keys), torch.stack(new_values)


def _layers(decoder: Decoder) -> list[Any]:
    return [decoder.layers[i] for i in range(len(decoder.layers))]

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

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.blocks.model import Decoder, PortableModel
from fairseq_residuals.wirings.blocks.settings import EOS, PAD
from fairseq_residuals.wirings.core.attention import KeysValues

MEMORY = ("memory_keys", "memory_values")
CACHE = ("keys", "values")


class StepCache(DecoderCache):
    """A cache whose layers are told apart by the order in which they ask, as in the tensors that hold all layers."""

    def __init__(
        self, keys: Tensor | None = None, values: Tensor | None = None, memory: Sequence[KeysValues] = ()
    ) -> None:
        """Begin a step.

        Args:
            keys, values: (layers, B, H, P, channels of a head) of the positions before; None: there are none.
            memory: what each layer reads of the encoder's output; empty: it is computed, and kept.
        """
        super().__init__()
        self.positions = 0 if keys is None else keys.size(3)
        self.before = [] if keys is None or values is None else list(zip(keys.unbind(), values.unbind(), strict=True))
        self.after: list[tuple[Tensor, Tensor]] = []
        self.memory = list(memory)
        self.kept: list[KeysValues] = []

    def recall(self, attn: Any) -> KeysValues | None:
        """As :meth:`.KVCache.recall`."""
        if not self.memory:
            return None
        self.kept.append(self.memory[len(self.kept)])
        return self.kept[-1]

    def remember(self, attn: Any, memory: KeysValues) -> KeysValues:
        """As :meth:`.KVCache.remember`."""
        self.kept.append(memory)
        return memory

    def extend(self, attn: Any, new: KeysValues) -> KeysValues:
        """As :meth:`.KVCache.extend`; the padding mask of ``new`` is that of all positions already."""
        keys, values = new.keys, new.values
        if self.before:
            past_keys, past_values = self.before[len(self.after)]
            keys, values = torch.cat([past_keys, keys], 2), torch.cat([past_values, values], 2)
        self.after.append((keys, values))
        return new._replace(keys=keys, values=values)


class EncoderGraph(nn.Module):
    """The encoder, and of each decoder layer the keys and values that it reads from it."""

    def __init__(self, model: PortableModel) -> None:
        super().__init__()
        assert model.encoder is not None
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) -> keys, values, each (layers, B, H, S, channels of a head)"""
        # what a first step would keep; the step itself is no part of the graph, since nothing of it is returned
        cache = StepCache()
        self.decoder(torch.full_like(source[:, :1], EOS), self.encoder(source), source.eq(PAD), cache)
        return torch.stack([memory.keys for memory in cache.kept]), torch.stack([m.values for m in cache.kept])


class LanguageModelGraph(nn.Module):
    """Some positions of a language model after those in the cache."""

    def __init__(self, model: PortableModel) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(self, tokens: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (B, T, words) and the cache of P + T positions."""
        return _step(self.decoder, StepCache(keys, values), tokens, None, None)


class DecoderGraph(nn.Module):
    """Some positions of the decoder of a pair after those in the cache."""

    def __init__(self, model: PortableModel) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(
        self,
        tokens: Tensor,
        keys: Tensor,
        values: Tensor,
        memory_keys: Tensor,
        memory_values: Tensor,
        source_padding: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (B, T, words) and the cache of P + T positions."""
        pairs = zip(memory_keys.unbind(), memory_values.unbind(), strict=True)
        cache = StepCache(keys, values, [KeysValues(k, v, None, source_padding) for k, v in pairs])
        # read nowhere, since what every layer reads of it is in the cache
        memory = keys.new_zeros(1, 1, self.decoder.layers[0].encoder_attn.kdim)
        return _step(self.decoder, cache, tokens, memory, source_padding)


def _step(
    decoder: Decoder, cache: StepCache, tokens: Tensor, memory: Tensor | None, source_padding: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    logits = decoder(tokens, memory, source_padding, cache)
    keys, values = zip(*cache.after, strict=True)
    return logits, torch.stack(keys), torch.stack(values)


def empty_cache(decoder: Decoder, rows: int, positions: int = 0) -> tuple[Tensor, Tensor]:
    """Return keys and values of ``positions`` positions, zeros."""
    s = decoder.settings
    shape = s.layers, rows, s.heads, positions, s.dim // s.heads
    return torch.zeros(shape), torch.zeros(shape)

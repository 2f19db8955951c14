"""A trained encoder-decoder or language model on PyTorch alone.

Parameters have the names that the plugin's modules have under fairseq, and the outputs are the same. What fairseq does
around a stack is here: embeddings, positions, the norm on them, projections to other widths, the output matrix. After
facebookresearch/fairseq@v0.12.2 (``models/transformer/transformer_encoder.py``, ``transformer_decoder.py``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.blocks.settings import PAD, ModelSettings, StackSettings
from fairseq_residuals.wirings.blocks.transformer import SubLayers, TransformerStack
from fairseq_residuals.wirings.core.attention import open_attention
from fairseq_residuals.wirings.core.base import Connection, StackShape
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.stack import Stack


def sinusoids(numbers: Tensor, dim: int) -> Tensor:
    """Return sines and cosines of numbered positions, (B, T) -> (B, T, dim), zeros at padding.

    Computed where they are needed: a model has no table to store, and no longest sentence.
    """
    half = dim // 2
    rates = torch.exp(
        torch.arange(half, dtype=torch.float, device=numbers.device) * -(math.log(10000) / max(half - 1, 1))
    )
    angles = numbers.float().unsqueeze(-1) * rates
    table = nn.functional.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, dim % 2))
    return table * numbers.ne(PAD).unsqueeze(-1)


class EmbeddedStack(nn.Module):
    """A stack with its embeddings below."""

    def __init__(self, settings: StackSettings, shape: StackShape, memory_dim: int | None) -> None:
        super().__init__()
        self.settings = settings
        dim = settings.dim
        self.embed_tokens = nn.Embedding(settings.words, settings.input_dim, padding_idx=PAD)
        self.project_in_dim = None if settings.input_dim == dim else nn.Linear(settings.input_dim, dim, bias=False)
        learned = settings.positions == "learned"
        # fairseq numbers positions from the padding's index + 1
        self.embed_positions = nn.Embedding(settings.max_positions + PAD + 1, dim, padding_idx=PAD) if learned else None
        self.layernorm_embedding = nn.LayerNorm(dim) if settings.norm_embedding else None
        sublayers = [
            SubLayers(
                dim,
                settings.heads,
                settings.ffn_dim,
                memory_dim=memory_dim,
                activation=settings.activation,  # type: ignore[arg-type]
                dropout=0.0,
                attention_dropout=0.0,
                activation_dropout=0.0,
            )
            for _ in range(settings.layers)
        ]
        self.layers = TransformerStack(sublayers, settings.wiring.build(shape), shape)

    def embed(self, tokens: Tensor, past: Tensor | int = 0) -> Tensor:
        """Embed tokens and their positions, (B, T) -> (T, B, C).

        Args:
            past: how many tokens precede each row, (B, 1) or a number.
        """
        real = tokens.ne(PAD)
        x = self.settings.embed_scale * self.embed_tokens(tokens)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.settings.positions != "none":
            numbers = (real.cumsum(1) + past) * real + PAD
            learned = self.embed_positions
            x = x + (sinusoids(numbers, x.size(-1)).type_as(x) if learned is None else learned(numbers))
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return x.transpose(0, 1)

    def run(self, x: Tensor, context: Context) -> Tensor:
        """Run the layers, (T, B, C) -> (T, B, C)."""
        # masks come from the callers: whether one is needed must not depend on values, or no graph can be exported
        return Stack.forward(self.layers, x, context)[0]


class Encoder(EmbeddedStack):
    """The encoder of a pair."""

    main_input_name = "input_ids"
    """What transformers asks of an encoder."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode, (B, S) -> (S, B, C), or as many channels as the wiring gives a decoder of several memories."""
        padding = tokens.eq(PAD)
        x = self.embed(tokens) * padding.logical_not().t().unsqueeze(-1)
        return self.run(x, Context(padding_mask=padding))


class Decoder(EmbeddedStack):
    """The decoder of a pair, or a language model, with the output matrix."""

    def __init__(self, settings: StackSettings, shape: StackShape, memory_dim: int | None, output_dim: int) -> None:
        super().__init__(settings, shape, memory_dim)
        dim = settings.dim
        self.project_out_dim = None if output_dim == dim else nn.Linear(dim, output_dim, bias=False)
        self.output_projection = nn.Linear(output_dim, settings.words, bias=False)

    def forward(
        self,
        tokens: Tensor,
        memory: Tensor | None = None,
        memory_padding: Tensor | None = None,
        cache: DecoderCache | None = None,
        past_padding: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of new tokens, (B, T) -> (B, T, words).

        Args:
            memory: (S, B, C of the encoder), for a decoder of a pair.
            memory_padding: (B, S), True at padding.
            cache: of the tokens before, to which those given are added.
            past_padding: (B, P), True at padding among the tokens in the cache; None: there is none.
        """
        new, padding = tokens.size(1), tokens.eq(PAD)
        past = 0 if cache is None else cache.positions
        before: Tensor | int = past if past_padding is None else past_padding.logical_not().sum(1, keepdim=True)
        if past_padding is not None:
            padding = torch.cat([past_padding, padding], 1)
        elif cache is not None:
            padding = torch.cat([padding.new_zeros(padding.size(0), past), padding], 1)
        x = self.embed(tokens, before)
        position = torch.arange(past + new, device=tokens.device)
        # of numbers alone: a mask of constants is what every format can hold
        future = torch.zeros(new, past + new, dtype=x.dtype, device=tokens.device).masked_fill(
            position[None, :] > position[past:, None], -torch.inf
        )
        context = Context(
            padding_mask=padding,
            self_attn_mask=future,
            memory=memory,
            memory_padding_mask=memory_padding,
            cache=cache,
        )
        x = self.run(x, context)
        if cache is not None:
            cache.advance(new, padding)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        logits: Tensor = self.output_projection(x.transpose(0, 1))
        return logits


class PortableModel(nn.Module):
    """A model as its settings say, its parameters not yet loaded."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder, self.decoder = build_halves(settings)
        tie(settings, self.encoder, self.decoder)


def build_halves(settings: ModelSettings) -> tuple[Encoder | None, Decoder]:
    """Build the encoder, None of a language model, and the decoder.

    Raises:
        UserError: a wiring has no meaning in such a stack.
    """
    depths = settings.encoder.layers if settings.encoder else 0, settings.decoder.layers
    encoder = None
    if settings.encoder is not None:
        encoder = Encoder(settings.encoder, _shape("encoder", settings.encoder, depths), None)
    memory_dim = settings.encoder.dim if settings.encoder else None
    decoder = Decoder(settings.decoder, _shape("decoder", settings.decoder, depths), memory_dim, settings.output_dim)
    for half in filter(None, (encoder, decoder)):
        for module in half.modules():
            if isinstance(module, Connection):
                # plain products and a softmax: PyTorch's fused kernel is no part of the formats that graphs go to
                module.attention = open_attention
    return encoder, decoder


def tie(settings: ModelSettings, encoder: Encoder | None, decoder: Decoder) -> None:
    """Make the embeddings that are one parameter one parameter."""
    if settings.share_input_output:
        decoder.output_projection.weight = decoder.embed_tokens.weight
    if settings.share_all and encoder is not None:
        encoder.embed_tokens.weight = decoder.embed_tokens.weight


def _shape(stack: str, settings: StackSettings, depths: tuple[int, int]) -> StackShape:
    return StackShape(
        stack=stack,  # type: ignore[arg-type]
        depth=settings.layers,
        dim=settings.dim,
        ffn_dim=settings.ffn_dim,
        heads=settings.heads,
        enc_depth=depths[0],
        dec_depth=depths[1],
        cross=min(depths) > 0,
    )

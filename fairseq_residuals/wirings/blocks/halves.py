"""The encoder and the decoder of a whole model on PyTorch alone, trained here or under fairseq.

Parameters have the names that the plugin's modules have under fairseq, and the outputs are the same. What fairseq does
around a stack is here: embeddings, positions, the norm on them, projections to other widths, the output matrix. After
facebookresearch/fairseq@v0.12.2 (``models/transformer/transformer_encoder.py``, ``transformer_decoder.py``).
"""

from __future__ import annotations

from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.blocks.embedding import TokenEmbedding
from fairseq_residuals.wirings.blocks.settings import ModelSettings, StackSettings
from fairseq_residuals.wirings.blocks.transformer import build_layers
from fairseq_residuals.wirings.core.attention import open_attention
from fairseq_residuals.wirings.core.base import Connection, StackShape
from fairseq_residuals.wirings.core.wiring import Wiring


class EmbeddedStack(TokenEmbedding):
    """Embeddings with a stack above; both have the names of fairseq's encoders and decoders."""

    def __init__(
        self, settings: StackSettings, shape: StackShape, memory_dim: int | None, wiring: Wiring | None = None
    ) -> None:
        """Build it; ``wiring`` is that of a class, which settings cannot name."""
        super().__init__(
            settings.words,
            settings.dim,
            padding_idx=settings.padding,
            positions=settings.positions,
            max_positions=settings.max_positions,
            scale=settings.embed_scale,
            dropout=settings.dropout,
            input_dim=settings.input_dim,
            norm=settings.norm_embedding,
        )
        self.settings = settings
        self.layers = build_layers(settings, wiring or settings.wiring, shape, memory_dim)


class Encoder(EmbeddedStack):
    """The encoder of a pair."""

    main_input_name = "input_ids"
    """Name of the encoder's main input, for which transformers asks."""

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        """Encode, (B, S) -> (S, B, C), or as many channels as the wiring gives a decoder of several memories."""
        padding, x = self.padding_of(tokens), self.embed(tokens)
        if padding is not None:
            x = x * padding.logical_not().t().unsqueeze(-1)
        return self.layers(x, padding_mask=padding)  # type: ignore[no-any-return]


class Decoder(EmbeddedStack):
    """The decoder of a pair, or a language model, with the output matrix."""

    def __init__(
        self,
        settings: StackSettings,
        shape: StackShape,
        memory_dim: int | None,
        output_dim: int,
        wiring: Wiring | None = None,
    ) -> None:
        super().__init__(settings, shape, memory_dim, wiring)
        dim = settings.dim
        self.project_out_dim = None if output_dim == dim else nn.Linear(dim, output_dim, bias=False)
        self.output_projection = nn.Linear(output_dim, settings.words, bias=False)
        nn.init.normal_(self.output_projection.weight, std=output_dim**-0.5)

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        memory: Tensor | None = None,
        memory_padding: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """Return the logits of new tokens, (B, T) -> (B, T, words).

        Args:
            memory: (S, B, C of the encoder), for a decoder of a pair.
            memory_padding: (B, S), True at padding.
            cache: of the tokens before, to which those given are added.
        """
        x = self.layers(
            self.embed(tokens, cache=cache),
            padding_mask=self.padding_of(tokens),
            memory=memory,
            memory_padding_mask=memory_padding,
            cache=cache,
        )
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return self.output_projection(x.transpose(0, 1))  # type: ignore[no-any-return]


def build_halves(settings: ModelSettings, wiring: Wiring | None = None) -> tuple[Encoder | None, Decoder]:
    """Build the encoder, None of a language model, and the decoder; ``wiring`` is that of a class.

    Raises:
        UserError: a wiring has no meaning in such a stack.
    """
    encoder, memory_dim = None, None
    if settings.encoder is not None:
        encoder, memory_dim = Encoder(settings.encoder, settings.shape("encoder"), None, wiring), settings.encoder.dim
    return encoder, Decoder(settings.decoder, settings.shape("decoder"), memory_dim, settings.output_dim, wiring)


def open_all_attention(model: nn.Module) -> None:
    """Have plain products and a softmax for attention: PyTorch's fused kernels are no part of formats of graphs.

    Plain products also give a row weights, and not NaN, that sees padding alone, such as padding on the left.
    """
    for module in model.modules():
        if isinstance(module, Connection):
            module.attention = open_attention

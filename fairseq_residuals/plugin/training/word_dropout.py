"""``--encoder-word-dropout``, ``--decoder-word-dropout``: training leaves words of the input out.

Their positions stay.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.models.extensions import Extension, register_extension
from fairseq_residuals.plugin.models.fairseq_stack import PackedSides
from fairseq_residuals.wirings.core.errors import UserError

STACKS = ("encoder", "decoder")


class WordDropoutEmbedding(nn.Embedding):
    """Embed words of which, in training, each is zero with probability ``p``; the others are not rescaled.

    Takase and Kiyono 2021, "Rethinking Perturbations in Encoder-Decoders for Fast Training", as the 100-layer models of
    B2T use it. Written after takase/b2t_connection@c8e2ad4 (``fairseq/models/transformer.py``): what is dropped is what
    the embedding returns, before it is scaled and its position added; padding and the end of a sentence are dropped
    like words.
    """

    padding_idx: int

    def __init__(
        self, plain: nn.Embedding, p: float, *, keep_first: bool = False, sides: PackedSides | None = None
    ) -> None:
        """Share the weight of an embedding.

        Args:
            plain: an embedding, which stays as it is; both have one weight.
            p: from 0 up to, but not including, 1.
            keep_first: never drop the first word of a sentence, where a decoder finds its start symbol.
            sides: how the decoder's input is packed while the model runs; None: it is padded.
        """
        super().__init__(plain.num_embeddings, plain.embedding_dim, plain.padding_idx, _weight=plain.weight.data)
        self.weight = plain.weight
        self.p = p
        self.keep_first = keep_first
        self.sides = PackedSides() if sides is None else sides

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (B, T, C) of words (B, T)."""
        words = super().forward(tokens)
        if not self.training:
            return words
        dropped = torch.rand(tokens.shape, device=tokens.device) < self.p
        if self.keep_first:
            packing = self.sides.decoder
            # padding may be on the left
            place = tokens.ne(self.padding_idx).cumsum(1) - 1 if packing is None else packing.positions
            dropped = dropped & (place != 0)
        return words.masked_fill(dropped.unsqueeze(-1), 0)


@register_extension("word_dropout")
class WordDropout(Extension):
    """Word dropout in the input of an encoder, a decoder, or both."""

    def add_flags(self, parser: ArgumentParser) -> None:
        """Add a probability for each stack."""
        for stack in STACKS:
            parser.add_argument(
                f"--{stack}-word-dropout",
                type=float,
                metavar="P",
                help=f"in training, probability that a word of the {stack}'s input is missing",
            )

    def check(self, args: Namespace) -> None:
        """Refuse what is no probability, and embeddings that are not one table of words."""
        for stack in STACKS:
            p = getattr(args, f"{stack}_word_dropout")
            if p is not None and not 0 <= p < 1:
                raise UserError(f"--{stack}-word-dropout must be a number of at least 0 and less than 1, not {p!r}")
        for other in ("adaptive_input", "character_embeddings"):
            if args.decoder_word_dropout and getattr(args, other, None):
                raise UserError(
                    f"--decoder-word-dropout is not carried with --{other.replace('_', '-')}; leave one of them out"
                )

    def attach(self, model: Any, args: Namespace) -> None:
        """Replace the embeddings of the stacks whose words are dropped.

        Nothing else that has their weight changes: the other stack, the output projection, the names in a checkpoint.
        """
        for stack in STACKS:
            if p := getattr(args, f"{stack}_word_dropout"):
                owner = getattr(model, stack)
                owner.embed_tokens = WordDropoutEmbedding(
                    owner.embed_tokens, p, keep_first=stack == "decoder", sides=model.decoder.layers.sides
                )

"""Other libraries' Transformers of the same sizes.

fairseq's criterion and optimizer train them: only the network differs. Each has its own defaults but for sizes, shared
embeddings, and dropout, which is fairseq's 0.1 on branches and embeddings.

``torchscale``      0.3.0; its default wiring is Sub-LN with GELU
``x-transformers``  2.31; its default wiring is Pre-LN with GELU; ``attn_flash`` is PyTorch's fused attention

Neither has a beam search of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from fairseq_residuals.lab.bench.case import Case
from fairseq_residuals.lab.bench.contestants import Contestant
from fairseq_residuals.lab.bench.fairseq_models import Network, settings_of, task_of
from fairseq_residuals.wirings.core.errors import UserError

DROPOUT = 0.1


class Adapter(BaseFairseqModel):
    """What fairseq's criterion asks of a model."""

    def __init__(self, network: nn.Module, run: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.network = network
        self.run = run

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Return logits (B, T, V) of tokens (B, S) and (B, T); there is no padding."""
        return self.run(src_tokens, prev_output_tokens)


def torchscale(contestant: Contestant, case: Case) -> Network:
    """Return the model of the library torchscale.

    Raises:
        UserError: it is not installed, or cannot be imported.
    """
    config, architecture, embedding = load(
        "torchscale", "architecture.config", "architecture.encoder_decoder", "component.embedding"
    )
    settings = settings_of(contestant, case)
    sizes = {
        f"{stack}_{name}": value
        for stack in ("encoder", "decoder")
        for name, value in _named(case, "embed_dim", "ffn_embed_dim", "attention_heads", "layers").items()
    }
    torch.manual_seed(case.seed)
    positions = [embedding.PositionalEmbedding(case.tokens + 2, case.dim) for _ in range(2)]
    made = architecture.EncoderDecoder(
        config.EncoderDecoderConfig(
            **sizes,
            vocab_size=case.vocabulary,
            share_all_embeddings=True,
            dropout=DROPOUT,
            no_scale_embedding=False,
            checkpoint_activations=case.checkpoint_activations,
        ),
        encoder_embed_tokens=embedding.TextEmbedding(case.vocabulary, case.dim),
        encoder_embed_positions=positions[0],
        decoder_embed_positions=positions[1],
    )
    return Network(Adapter(made, lambda source, previous: made(source, previous)[0]), settings, task_of(settings, case))


def x_transformers(contestant: Contestant, case: Case) -> Network:
    """Return the model of the library x-transformers.

    Raises:
        UserError: it is not installed, cannot be imported, or lacks what the case needs.
    """
    (library,) = load("x_transformers", "")
    if case.checkpoint_activations:
        raise UserError("x-transformers does not recompute activations")
    settings = settings_of(contestant, case)
    torch.manual_seed(case.seed)
    sizes: dict[str, Any] = {"dim": case.dim, "depth": case.layers, "heads": case.heads}
    sizes |= {"attn_dim_head": case.dim // case.heads, "ff_mult": case.ffn_dim / case.dim}
    sizes |= {"attn_flash": True, "attn_sublayer_dropout": DROPOUT, "ff_sublayer_dropout": DROPOUT}
    words = {"num_tokens": case.vocabulary, "max_seq_len": case.tokens, "emb_dropout": DROPOUT}
    encoder = library.TransformerWrapper(**words, attn_layers=library.Encoder(**sizes), return_only_embed=True)
    decoder = library.TransformerWrapper(
        **words, attn_layers=library.Decoder(**sizes, cross_attend=True), tie_embedding=True
    )
    decoder.token_emb = encoder.token_emb
    network = nn.ModuleList([encoder, decoder])

    def run(source: Tensor, previous: Tensor) -> Tensor:
        return decoder(previous, context=encoder(source, return_embeddings=True))

    return Network(Adapter(network, run), settings, task_of(settings, case))


def load(package: str, *modules: str) -> list[Any]:
    """Return modules of a package that need not be there.

    Raises:
        UserError: it is not installed, or what it needs does not work here.
    """
    if find_spec(package) is None:
        raise UserError(f"not installed (pip install {package.replace('_', '-')})")
    try:
        return [import_module(f"{package}.{module}".rstrip(".")) for module in modules]
    except Exception as error:
        # whatever goes wrong in there, and in what it imports, is the same news
        raise UserError(f"{package} cannot be imported here: {type(error).__name__}: {error}") from error


def _named(case: Case, *names: str) -> dict[str, int]:
    return dict(zip(names, (case.dim, case.ffn_dim, case.heads, case.layers), strict=True))

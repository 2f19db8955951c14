"""Models that the loss in chunks cannot be computed of: one sentence."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.multilingual_transformer import MultilingualTransformerModel
from torch import nn

from fairseq_residuals.plugin.training.chunked_label_smoothed_cross_entropy import (
    ChunkedLabelSmoothedCrossEntropy,
)
from fairseq_residuals.wirings.core.errors import UserError

SIZES = {f"{stack}_{key}": 8 for stack in ("encoder", "decoder") for key in ("embed_dim", "ffn_embed_dim")}
SIZES |= {f"{stack}_{key}": 1 for stack in ("encoder", "decoder") for key in ("layers", "attention_heads")}


def model(arch: str) -> nn.Module:
    words = Dictionary()
    words.add_symbol("word")
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    args = Namespace(arch=arch, alignment_layer=0, max_source_positions=9, max_target_positions=9, **SIZES)
    args.tokens_per_sample = args.max_positions = 9
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task)  # type: ignore[no-any-return]


def multilingual() -> nn.Module:
    parts = [model("transformer") for _ in range(2)]
    return MultilingualTransformerModel({"a-b": parts[0].encoder}, {"a-b": parts[1].decoder})


MODELS = {
    "transformer_align": lambda: model("transformer_align"),
    "roberta": lambda: model("roberta"),
    "multilingual_transformer": multilingual,
    "one direction of multilingual_transformer": lambda: multilingual().models["a-b"],
}


@pytest.mark.parametrize("name", MODELS)
def test_models_without_one_projection(name: str) -> None:
    words = Dictionary()
    criterion = ChunkedLabelSmoothedCrossEntropy(SimpleNamespace(target_dictionary=words), False, 0.1)
    batch = {"target": torch.tensor([[4, 2]]), "ntokens": 2, "net_input": {}}
    with pytest.raises(UserError, match="is for models whose output is a projection by a matrix"):
        criterion(MODELS[name](), batch)

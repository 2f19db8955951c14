"""How this plugin builds the fairseq models of golden files."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.models.transformer import TransformerModel
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.fairseq_config import synthetic_dictionary
from fairseq_residuals.plugin.checkpoints.importing.parameter_names import AUTHORS, Authors
from fairseq_residuals.plugin.models.args import for_stock_build
from fairseq_residuals.plugin.models.builder import wire_stack
from fairseq_residuals.wirings.core.wiring import Wiring
from tests.golden_check import tolerances
from tests.golden_check.fixtures import Golden
from tests.golden_check.rebuild import GoldenRecipe
from tests.golden_check.tolerances import Tolerances


@dataclass(frozen=True)
class FairseqRecipe(GoldenRecipe):
    """How to build what some authors' code calls ``names``."""

    names: tuple[str, ...]
    """Of the variant in golden files, less the endings of :data:`ENDINGS`."""
    variant: str
    """For --residual."""
    args: str = ""
    """For --residual-args."""
    flags: tuple[str, ...] = ()
    """Further flags of fairseq-train."""
    endings: Mapping[str, str] = field(default_factory=dict)
    """What may follow a name, and the option that it stands for."""

    @property
    def tolerances(self) -> Tolerances:
        return tolerances.FAIRSEQ

    def match(self, name: str) -> FairseqRecipe | None:
        """Return the recipe for ``name`` with the options that its endings stand for, if it is one of its names."""
        match = re.fullmatch(rf"({'|'.join(self.names)})((?:{'|'.join(self.endings) or '(?!)'})*)", name)
        if match is None:
            return None
        options = [option for ending, option in self.endings.items() if ending in match[2]]
        return replace(self, args=",".join(filter(None, [self.args, *options])))

    def authors_of(self, description: dict[str, Any]) -> Authors:
        provenance = description.get("provenance")
        source = description if provenance is None else provenance
        authors = authors_of(source.get("repo") if isinstance(source, dict) else None)
        return replace(authors, convert=lambda values: authors.convert(_in_its_model(values)))

    def wiring_of(self, golden: Golden) -> str:
        return f"{self.variant}({self.args})" if self.args else self.variant

    def build(self, golden: Golden) -> nn.Module:
        args, task = self._settings(golden), _task(golden)
        if golden.depth("decoder.layers"):
            model = build_model(args, task)
        else:
            ARCH_CONFIG_REGISTRY[args.arch](args)
            model = EncoderAlone(args, task, Wiring.parse(args.residual, args.residual_args))
        if "decoder.output_projection.bias" in golden.parameters:
            projection = model.decoder.output_projection
            projection.bias = nn.Parameter(projection.weight.new_zeros(len(projection.weight)))
        return model

    def _settings(self, golden: Golden) -> Namespace:
        flags = ["--residual-args", self.args, *self.flags, *_sharing(golden)]
        stacks = [stack for stack in ("encoder", "decoder") if golden.depth(f"{stack}.layers")]
        for stack in stacks:
            flags += [part for name, size in _sizes(golden, stack).items() for part in (f"--{stack}-{name}", str(size))]
        flags += ["--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0"]
        arch = f"transformer_{self.variant}" if "encoder" in stacks else f"transformer_lm_{self.variant}"
        parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False)
        ARCH_MODEL_REGISTRY[arch].add_args(parser)
        return parser.parse_args(flags, Namespace(arch=arch))


class EncoderAlone(nn.Module):
    """An encoder that is no part of a translation model, which no task of this plugin has."""

    def __init__(self, args: Namespace, task: Namespace, wiring: Wiring) -> None:
        super().__init__()
        args = for_stock_build(args)
        embed_tokens = TransformerModel.build_embedding(args, task.source_dictionary, args.encoder_embed_dim)
        self.encoder = TransformerModel.build_encoder(args, task.source_dictionary, embed_tokens)
        wire_stack(self.encoder, wiring, "encoder", enc_depth=args.encoder_layers, dec_depth=0)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> dict[str, list[Tensor]]:
        """Return tokens (B, S), lengths (B,) -> what fairseq's encoders return."""
        return self.encoder(src_tokens, src_lengths)


def authors_of(repositories: object) -> Authors:
    """Return the authors whose repository is named in ``repositories``, a text or a list of texts; else fairseq's."""
    found = (authors for authors in AUTHORS.values() if authors.repository in str(repositories))
    return next(found, AUTHORS["fairseq"])


def _in_its_model(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name the parameters as in a whole model: an encoder alone calls its own ``layers.0. ...``."""
    inside = any(name.startswith(("encoder.", "decoder.", "enc.", "dec.")) for name in values)
    return values if inside else {f"encoder.{name}": value for name, value in values.items()}


def _sizes(golden: Golden, stack: str) -> dict[str, int]:
    """Return what the parameters tell, by the ends of flags."""
    fc1 = golden.parameters.get(f"{stack}.layers.0.fc1.weight")
    return {
        "layers": golden.depth(f"{stack}.layers"),
        "embed-dim": golden.parameters[f"{stack}.embed_tokens.weight"].size(1),
        "ffn-embed-dim": golden.description["sizes"]["ffn_dim"] if fc1 is None else len(fc1),
        "attention-heads": golden.heads,
    }


def _sharing(golden: Golden) -> list[str]:
    """Return the flag for the embeddings that are one matrix: the weights tell, a sidecar does not for all three."""
    if not golden.depth("decoder.layers"):
        return []
    inputs = golden.parameters["decoder.embed_tokens.weight"]
    if not torch.equal(golden.parameters.get("decoder.output_projection.weight", inputs), inputs):
        return []
    if golden.depth("encoder.layers") and torch.equal(golden.parameters["encoder.embed_tokens.weight"], inputs):
        return ["--share-all-embeddings"]
    return ["--share-decoder-input-output-embed"]


def _task(golden: Golden) -> Namespace:
    """Return what fairseq's models ask of a task."""
    target = _dictionary(golden, "decoder" if golden.depth("decoder.layers") else "encoder")
    return Namespace(
        source_dictionary=_dictionary(golden, "encoder") if golden.depth("encoder.layers") else target,
        target_dictionary=target,
        args=Namespace(max_target_positions=1024, tokens_per_sample=1024, add_bos_token=False),
    )


def _dictionary(golden: Golden, side: str) -> Dictionary:
    """Return a dictionary of synthetic words, as many as the embedding of ``side`` has."""
    return synthetic_dictionary(len(golden.parameters[f"{side}.embed_tokens.weight"]))


ENDINGS = re.compile(r"(_lm|_enc|_b2tfork)*$")
"""Of a variant's name in golden files: the language model, the encoder alone, and the B2T repository's copy of a
baseline."""

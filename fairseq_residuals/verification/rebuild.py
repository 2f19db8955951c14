"""The model that a golden file describes, rebuilt with this plugin and given the file's weights."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.models.transformer import TransformerModel
from torch import Tensor, nn

from fairseq_residuals.checkpoints.fairseq_config import made_up_dictionary
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.wiring import Wiring
from fairseq_residuals.models.args import for_stock_build
from fairseq_residuals.models.builder import rewire
from fairseq_residuals.models.state_dict_names import fairseq_name
from fairseq_residuals.verification.golden_file import Golden, read_sidecar, variant_name
from fairseq_residuals.verification.golden_layouts import read_golden
from fairseq_residuals.verification.golden_recipes import LackedVariant, Recipe, find_recipe, refuse_other_kinds
from modern_fairseq.checkpoints import misfit


def read(path: Path) -> tuple[Golden, Recipe]:
    """A golden file, and how to build its model.

    Raises:
        LackedVariant: this plugin lacks its variant.
        OtherKind: it is no golden file, by its name.
        UserError: the file or its sidecar is missing or damaged.
    """
    refuse_other_kinds(path)
    sidecar = read_sidecar(path)
    name = variant_name(path, sidecar)
    recipe = find_recipe(name)
    if recipe is None:
        raise LackedVariant((path, name))
    return read_golden(path, sidecar), recipe


class EncoderAlone(nn.Module):
    """An encoder that is no part of a translation model, which no task of this plugin has."""

    def __init__(self, args: Namespace, task: Namespace, wiring: Wiring) -> None:
        super().__init__()
        args = for_stock_build(args)
        embed_tokens = TransformerModel.build_embedding(args, task.source_dictionary, args.encoder_embed_dim)
        self.encoder = TransformerModel.build_encoder(args, task.source_dictionary, embed_tokens)
        rewire(self.encoder, wiring, "encoder", enc_depth=args.encoder_layers, dec_depth=0)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> dict[str, list[Tensor]]:
        """Tokens (B, S), lengths (B,) -> what fairseq's encoders return."""
        return self.encoder(src_tokens, src_lengths)


def rebuild(golden: Golden, recipe: Recipe) -> nn.Module:
    """The model with the golden's weights, in evaluation mode.

    Raises:
        UserError: the weights are not exactly those that the model has.
    """
    args, task = _settings(golden, recipe), _task(golden)
    if golden.sizes.decoder_layers:
        model = build_model(args, task)
    else:
        ARCH_CONFIG_REGISTRY[args.arch](args)
        model = EncoderAlone(args, task, Wiring.parse(args.residual, args.residual_args))
    if "decoder.output_projection.bias" in golden.parameters:
        projection = model.decoder.output_projection
        projection.bias = nn.Parameter(projection.weight.new_zeros(len(projection.weight)))
    parameters = {fairseq_name(name): p for name, p in model.named_parameters()}
    for verb, names in (
        ("lacks", parameters.keys() - golden.parameters.keys()),
        ("holds, unlike its model,", golden.parameters.keys() - model.state_dict().keys()),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise UserError(f"{golden.path} {verb} param/{min(names)}{more}")
    try:
        # not strict: what layers share is there once; that nothing is missing was seen above
        model.load_state_dict(golden.parameters, strict=False)
    except RuntimeError as error:
        raise misfit(error, str(golden.path)) or error from error
    for name in golden.constant:
        parameters[name].requires_grad_(False)
    if golden.positions is not None:
        _place_positions(model, golden.positions)
    return model.eval()


def _place_positions(model: Any, positions: Tensor) -> None:
    for side in (model.encoder, model.decoder):
        before = positions.new_zeros(side.padding_idx + 1, positions.size(1))
        side.embed_positions.weights = torch.cat([before, positions])


def _settings(golden: Golden, recipe: Recipe) -> Namespace:
    sizes = golden.sizes
    flags = ["--residual-args", recipe.args, *recipe.flags, *_sharing(golden)]
    for stack, layers in (("encoder", sizes.encoder_layers), ("decoder", sizes.decoder_layers)):
        if layers:
            flags += [f"--{stack}-layers", str(layers), f"--{stack}-embed-dim", str(sizes.dim)]
            flags += [
                f"--{stack}-ffn-embed-dim",
                str(sizes.ffn_dim),
                f"--{stack}-attention-heads",
                str(sizes.heads),
            ]
    flags += ["--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0"]
    arch = f"transformer_{recipe.variant}" if sizes.encoder_layers else f"transformer_lm_{recipe.variant}"
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return parser.parse_args(flags, Namespace(arch=arch))


def _sharing(golden: Golden) -> list[str]:
    """The flag for the embeddings that are one matrix: the weights tell, a sidecar does not for all three."""
    if not golden.sizes.decoder_layers:
        return []
    inputs = _weight(golden, "decoder.embed_tokens.weight")
    if not torch.equal(golden.parameters.get("decoder.output_projection.weight", inputs), inputs):
        return []
    if golden.sizes.encoder_layers and torch.equal(_weight(golden, "encoder.embed_tokens.weight"), inputs):
        return ["--share-all-embeddings"]
    return ["--share-decoder-input-output-embed"]


def _task(golden: Golden) -> Namespace:
    """What fairseq's models ask of a task."""
    target = _dictionary(golden, "decoder" if golden.sizes.decoder_layers else "encoder")
    return Namespace(
        source_dictionary=_dictionary(golden, "encoder") if golden.sizes.encoder_layers else target,
        target_dictionary=target,
        args=Namespace(max_target_positions=1024, tokens_per_sample=1024, add_bos_token=False),
    )


def _dictionary(golden: Golden, side: str) -> Dictionary:
    """Made-up words, as many as the embedding of ``side`` has."""
    return made_up_dictionary(len(_weight(golden, f"{side}.embed_tokens.weight")))


def _weight(golden: Golden, name: str) -> Tensor:
    if name not in golden.parameters:
        raise UserError(f"{golden.path} lacks param/{name}, which golden files of its kind have")
    return golden.parameters[name]

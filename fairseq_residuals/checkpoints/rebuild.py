"""The model that a golden file describes, rebuilt with this plugin and given the file's weights."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, build_model
from torch import Tensor, nn

from fairseq_residuals.checkpoints.golden import Golden, read_sidecar, variant_name
from fairseq_residuals.checkpoints.golden_layouts import read_golden
from fairseq_residuals.checkpoints.golden_names import Renames
from fairseq_residuals.names import fairseq_name
from modern_fairseq.checkpoints import misfit
from modern_fairseq.errors import UserError


@dataclass(frozen=True)
class Recipe:
    """How this plugin builds what some authors' code calls ``names``."""

    names: tuple[str, ...]
    """Of the variant in golden files, less the endings of :data:`ENDINGS`."""
    variant: str
    """For --residual."""
    args: str = ""
    """For --residual-args."""
    flags: tuple[str, ...] = ()
    """Further flags of fairseq-train."""
    renames: Renames = ()
    """For parameters that the authors named as fairseq never did."""


ENDINGS = re.compile(r"(_lm|_b2tfork)*$")
"""Of a variant's name in golden files: the language model, and the B2T repository's copy of a baseline."""

RECIPES = (
    Recipe(("postln", "clinic_postln", "tfixuprepo_postln"), "post_ln"),
    Recipe(("preln", "clinic_preln", "tfixuprepo_preln", "dlclrepo_prenorm_baseline"), "pre_ln"),
    Recipe(("preln_fsmain",), "pre_ln", flags=("--activation-fn", "gelu")),
    Recipe(("b2t",), "b2t"),
)


class LackedVariant(UserError):
    """Golden files of variants that this version of the plugin does not have."""

    def __init__(self, *files: tuple[Path, str]) -> None:
        """
        Args:
            files: each with the name of its variant.
        """
        known = sorted(name for recipe in RECIPES for name in recipe.names)
        lacking = ", ".join(f"{path} ({name})" for path, name in files)
        super().__init__(
            f"not verified, for this version lacks the variant: {lacking};"
            f" it can verify {', '.join(known)}, and these with _lm or _b2tfork appended"
        )
        self.files = files


def find_recipe(name: str) -> Recipe | None:
    """The recipe for what a golden file calls its variant, if this plugin has it."""
    base = ENDINGS.sub("", name)
    return next((recipe for recipe in RECIPES if base in recipe.names), None)


def read(path: Path) -> tuple[Golden, Recipe]:
    """A golden file, and how to build its model.

    Raises:
        LackedVariant: this plugin lacks its variant.
        UserError: the file or its sidecar is missing or damaged.
    """
    sidecar = read_sidecar(path)
    name = variant_name(path, sidecar)
    recipe = find_recipe(name)
    if recipe is None:
        raise LackedVariant((path, name))
    return read_golden(path, sidecar, recipe.renames), recipe


def rebuild(golden: Golden, recipe: Recipe) -> nn.Module:
    """The model with the golden's weights, in evaluation mode.

    Raises:
        UserError: the weights are not exactly those that the model has.
    """
    model = build_model(_settings(golden, recipe), _task(golden))
    needed = {fairseq_name(name) for name, _ in model.named_parameters()}
    for verb, names in (
        ("lacks", needed - golden.parameters.keys()),
        ("holds, unlike its model,", golden.parameters.keys() - model.state_dict().keys()),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise UserError(f"{golden.path} {verb} param/{min(names)}{more}")
    try:
        model.load_state_dict({**dict(model.named_buffers()), **golden.parameters}, strict=True)
    except RuntimeError as error:
        raise misfit(error, str(golden.path)) or error from error
    return model.eval()


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
    inputs = _weight(golden, "decoder.embed_tokens.weight")
    if not torch.equal(golden.parameters.get("decoder.output_projection.weight", inputs), inputs):
        return []
    if golden.sizes.encoder_layers and torch.equal(_weight(golden, "encoder.embed_tokens.weight"), inputs):
        return ["--share-all-embeddings"]
    return ["--share-decoder-input-output-embed"]


def _task(golden: Golden) -> Namespace:
    """What fairseq's models ask of a task."""
    target = _dictionary(golden, "decoder")
    return Namespace(
        source_dictionary=_dictionary(golden, "encoder") if golden.sizes.encoder_layers else target,
        target_dictionary=target,
        args=Namespace(max_target_positions=1024, tokens_per_sample=1024, add_bos_token=False),
    )


def _dictionary(golden: Golden, side: str) -> Dictionary:
    """Made-up words, as many as the embedding of ``side`` has."""
    words = Dictionary()
    for i in range(len(words), len(_weight(golden, f"{side}.embed_tokens.weight"))):
        words.add_symbol(f"w{i}")
    return words


def _weight(golden: Golden, name: str) -> Tensor:
    if name not in golden.parameters:
        raise UserError(f"{golden.path} lacks param/{name}, which golden files of its kind have")
    return golden.parameters[name]

"""What a model is given, checked before it runs: a golden file of wrong shapes is a user error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairseq_residuals.core.errors import UserError

if TYPE_CHECKING:
    from fairseq_residuals.verification.fixtures import Golden

TOKENS, VECTORS = ("src_tokens", "prev_output_tokens"), ("src_vectors", "tgt_vectors")


def check_inputs(golden: Golden) -> None:
    """Check the inputs of ``golden`` by themselves.

    Raises:
        UserError: something that the model is given has no shape, type or value that it could be given.
    """
    inputs = golden.inputs
    sentences = {len(inputs[name]) for name in (*TOKENS, *VECTORS) if name in inputs and inputs[name].dim()}
    target, shifted = inputs.get("target"), inputs.get("prev_output_tokens")
    kinds = dict.fromkeys((*TOKENS, "target"), ("64-bit whole numbers (B, T)", 2, False))
    kinds |= dict.fromkeys((*VECTORS, "loss_weight"), ("real numbers (B, T, C)", 3, True))
    kinds["src_lengths"] = ("a 64-bit whole number for every sentence", 1, False)
    for name, (kind, dims, real) in kinds.items():
        x = inputs.get(name)
        if x is None:
            continue
        if not x.numel() or x.dim() != dims or not (x.is_floating_point() if real else x.dtype == torch.int64):
            raise UserError(f"{golden.path}: in/{name} must be {kind}, not {x.dtype} {tuple(x.shape)}")
    if "src_lengths" in inputs:
        sentences.add(len(inputs["src_lengths"]))
    if len(sentences) != 1 or (target is not None and shifted is not None and target.shape != shifted.shape):
        shapes = {name: tuple(inputs[name].shape) for name in (*kinds,) if name in inputs}
        raise UserError(f"{golden.path}: what the model is given does not belong together by its shapes: {shapes}")


def check_real(path: Path, arrays: dict[str, Tensor]) -> None:
    """Check that what was computed, and what it was computed with, is real numbers.

    Raises:
        UserError: an array is of another type.
    """
    for name, array in arrays.items():
        if name.startswith(("param/", "grad/", "init/", "out/", "loss/")) and not array.is_floating_point():
            raise UserError(f"{path}: {name} must be real numbers, not {array.dtype}")


def check_heads(golden: Golden, dim: int) -> None:
    """Check the number of heads.

    Raises:
        UserError: ``dim`` channels cannot be divided among the heads.
    """
    if dim % golden.heads:
        raise UserError(f"{golden.sidecar}: sizes.heads must divide the {dim} channels, and {golden.heads} does not")


def check_words(golden: Golden, words: int, *names: str) -> None:
    """Check the tokens of the inputs ``names``.

    Raises:
        UserError: there are tokens that are no words of the model.
    """
    given = {f"in/{name}": golden.inputs.get(name) for name in names}
    for generation in golden.generations.values():
        if "src_tokens" in names:
            given["gen/src_tokens"] = generation.src_tokens
        else:
            given["gen/prefix"] = generation.prefix
    for name, tokens in given.items():
        if tokens is not None and not (int(tokens.min()) >= 0 and int(tokens.max()) < words):
            raise UserError(f"{golden.path}: {name} has tokens that are none of the {words} words")


def check_width(golden: Golden, dim: int) -> None:
    """Check the vectors that the model is given, and what its output is weighted by.

    Raises:
        UserError: they have other channels than ``dim``, or there is no weight for each number of the output.
    """
    inputs = golden.inputs
    last = next((inputs[name] for name in ("tgt_vectors", "src_vectors", "src_tokens") if name in inputs), None)
    for name in (*VECTORS, "loss_weight"):
        if name in inputs:
            of = last if name == "loss_weight" and last is not None else inputs[name]
            expected = (*of.shape[:2], dim)
            if tuple(inputs[name].shape) != expected:
                raise UserError(f"{golden.path}: in/{name} must be {expected}, not {tuple(inputs[name].shape)}")

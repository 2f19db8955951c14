"""A checkpoint of this plugin as one of fairseq's own models, where its wiring amounts to one of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.exporting.portable_checkpoint import read_own
from fairseq_residuals.plugin.checkpoints.exporting.stock_form import fold_model
from fairseq_residuals.plugin.checkpoints.fairseq_config import complete, load_model
from fairseq_residuals.plugin.checkpoints.importing.model_sizes import dictionary_sizes, sharing
from fairseq_residuals.plugin.checkpoints.importing.wiring_detection import Found
from fairseq_residuals.plugin.checkpoints.safetensors_file import NO_TRAINING_STATE
from fairseq_residuals.plugin.models.builder import wirings_of
from fairseq_residuals.plugin.models.language_model import LANGUAGE_MODEL
from fairseq_residuals.plugin.models.speech_to_text import SPEECH
from fairseq_residuals.plugin.models.translation import TRANSLATION
from fairseq_residuals.wirings.core.errors import UserError

STOCK = {TRANSLATION.model: "transformer", LANGUAGE_MODEL.model: "transformer_lm", SPEECH.model: "s2t_transformer"}
"""fairseq's own model for each of ours, an architecture by the same name."""
PATCHED_IN = ("silu",)
"""Activations that fairseq has by a patch of modern_fairseq."""
TOLERANCE = 1e-4
"""Of the logits, as a part of the largest one: what rounding the folded weights to single precision may cost."""


@dataclass(frozen=True)
class Exported:
    checkpoint: dict[str, Any]
    """As fairseq wrote them until 0.10, and reads them since: settings in ``args``, no optimizer."""
    architecture: str
    deviation: float
    """The largest difference of logits on random input, as a part of the largest logit."""
    tables: list[str]
    """The stacks whose sinusoids became a table of positions, and whose embedding is no longer shared."""


def export_checkpoint(path: Path) -> Exported:
    """Return the model of a checkpoint as one of fairseq's own.

    Raises:
        UserError: the file is damaged or not this plugin's, its wiring or norms are none of fairseq's own, or the
            model for fairseq does not compute the same.
    """
    found, model_name = read_own(path)
    settings, sizes = found.settings, dictionary_sizes(found)
    args, _ = complete(settings["arch"], settings, {})
    if args.activation_fn in PATCHED_IN:
        raise UserError(f"{path} cannot be exported: fairseq itself has no activation {args.activation_fn}")
    wirings = wirings_of(args)
    ours = load_model(args, sizes, found.parameters, str(path))
    state = {name: value.double() if value.is_floating_point() else value for name, value in ours.state_dict().items()}
    try:
        exactly = fold_model(ours, wirings, state)
    except UserError as error:
        raise UserError(f"{path} cannot be exported: {error}") from error
    exactly |= sharing(Found(str(path), {}, state))
    stock = STOCK[model_name]
    args, _ = complete(stock, settings, exactly)
    folded = {name: value.float() for name, value in state.items()}
    theirs = load_model(args, sizes, _without_buffers(folded), f"fairseq's own {stock}")
    deviation = _deviation(ours, theirs, sizes)
    if not deviation <= TOLERANCE:
        raise UserError(
            f"{path} cannot be exported: fairseq's own {stock} with the folded weights differs from it by"
            f" {deviation:.1e} of the largest logit on random input, and at most {TOLERANCE:g} is rounding"
        )
    whole = {"args": args, "cfg": None, "model": theirs.float().state_dict()} | NO_TRAINING_STATE
    tables = [side for side in wirings if exactly.get(f"{side}_learned_pos")]
    return Exported(whole, stock, deviation, tables)


def _without_buffers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if not name.endswith((".version", "._float_tensor"))}


@torch.no_grad()
def _deviation(ours: nn.Module, theirs: nn.Module, sizes: dict[str, int]) -> float:
    a, b = (model.double().eval()(**_random_batch(model, sizes))[0] for model in (ours, theirs))
    return ((a - b).abs().max() / a.abs().max()).item()


def _random_batch(model: Any, sizes: dict[str, int], sentences: int = 4) -> dict[str, Tensor]:
    """Return a batch, the same for every model: words or features without padding, (B, 8) or (B, 48, features)."""
    generator = torch.Generator().manual_seed(1)
    longest = min(8, model.max_decoder_positions())
    previous = torch.randint(4, sizes["target"], (sentences, longest), generator=generator)
    lengths = torch.full((sentences,), longest)
    if not hasattr(model, "encoder"):
        return {"src_tokens": previous, "src_lengths": lengths}
    if hasattr(model.encoder, "subsample"):
        features = model.encoder.subsample.conv_layers[0].in_channels
        sound = torch.randn(sentences, 48, features, generator=generator, dtype=torch.float64)
        return {"src_tokens": sound, "src_lengths": torch.full((sentences,), 48), "prev_output_tokens": previous}
    source = torch.randint(4, sizes["source"], (sentences, longest), generator=generator)
    return {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous}

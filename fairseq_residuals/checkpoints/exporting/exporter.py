"""A checkpoint of this plugin as one of fairseq's own models, where its wiring amounts to one of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from torch import Tensor, nn

from fairseq_residuals.checkpoints.checkpoint_file import read_checkpoint
from fairseq_residuals.checkpoints.exporting.folding import fold
from fairseq_residuals.checkpoints.fairseq_config import Settings, complete, flat_settings, load_model
from fairseq_residuals.checkpoints.importing.model_sizes import dictionary_sizes, sharing
from fairseq_residuals.checkpoints.importing.parameter_names import AUTHORS, translate
from fairseq_residuals.checkpoints.importing.wiring_detection import Found
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.stack import Stack
from fairseq_residuals.models.builder import wirings_of
from fairseq_residuals.models.language_model import LANGUAGE_MODEL
from fairseq_residuals.models.speech_to_text import SPEECH
from fairseq_residuals.models.translation import TRANSLATION

STOCK = {TRANSLATION.model: "transformer", LANGUAGE_MODEL.model: "transformer_lm", SPEECH.model: "s2t_transformer"}
"""fairseq's own model for each of ours, an architecture by the same name."""
FAIRSEQ_HAS = {"norm_type": "layer", "fixnorm": False, "value_residual": "none", "gpas": "none"}
"""Options of every variant that fairseq's own models leave no choice."""
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
    checkpoint = read_checkpoint(path)
    settings = flat_settings(checkpoint)
    model_name = ARCH_MODEL_NAME_REGISTRY.get(settings.get("arch") or "")
    if model_name not in STOCK:
        raise UserError(
            f"{path} is of architecture {settings.get('arch')!r}, which is none of this plugin's;"
            " what is exported has to be a checkpoint of one of them"
        )
    found = Found(str(path), settings, translate(checkpoint["model"], AUTHORS["fairseq"]))
    sizes = dictionary_sizes(found)
    args, _ = complete(settings["arch"], settings, {})
    wirings = wirings_of(args)
    ours = load_model(args, sizes, found.parameters, str(path))
    state = {name: value.double() if value.is_floating_point() else value for name, value in ours.state_dict().items()}
    exactly: Settings = {}
    for side, wiring in wirings.items():
        owner = getattr(ours, side)
        layers = "layers" if hasattr(owner, "layers") else "transformer_layers"
        stack = getattr(owner, layers)
        if not stack.wiring.stock:
            raise UserError(
                f"{path} cannot be exported: its {side} is wired by {wiring.name} ({'; '.join(wiring.equations)}),"
                " where fairseq's own has x = LN(x + F(x)) in all layers, or x = x + F(LN(x)), up to constant factors"
            )
        for option, only in FAIRSEQ_HAS.items():
            if (value := wiring.value(option)) != only:
                raise UserError(
                    f"{path} cannot be exported: its {side} has {option}={value}, and fairseq's own model has"
                    f" {option}={only}"
                )
        exactly |= _placement(path, stack, f"{side}.layer_norm.weight" in state)
        exactly |= fold(owner, stack, f"{side}.{layers}", state)
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
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    whole = {"args": args, "cfg": None, "model": theirs.float().state_dict(), "optimizer_history": [history]}
    whole |= {"task_state": {}, "extra_state": {"train_iterator": {"epoch": 1}}, "last_optimizer_state": None}
    tables = [side for side in wirings if exactly.get(f"{side}_learned_pos")]
    return Exported(whole, stock, deviation, tables)


def _placement(path: Path, stack: Stack, top_norm: bool) -> Settings:
    """Return where a stock model has its norms."""
    side, before = stack.shape.stack, stack.wiring.stock == "pre_ln"
    if before and not top_norm and side == "encoder":
        raise UserError(
            f"{path} cannot be exported: its encoder is Pre-LN without a norm on top, where fairseq has one"
        )
    placed: Settings = {f"{side}_normalize_before": before}
    return placed | {"no_decoder_final_norm": before and not top_norm} if side == "decoder" else placed


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

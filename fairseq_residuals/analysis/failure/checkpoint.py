"""What a checkpoint tells of its run: parameters that are no numbers, sizes of weights and gradients per layer."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.analysis import measures
from fairseq_residuals.analysis.bands import vanishing_sentence
from fairseq_residuals.analysis.failure.diagnosis import LOWER_RATE, OTHER_WIRING
from fairseq_residuals.analysis.models import ModelSource, add_flags, device_of, make_subject
from fairseq_residuals.analysis.probes import run_forward
from fairseq_residuals.utils.tables import Cell, show
from modern_fairseq.loading.checkpoints import load_fairseq

HEAD = (
    *("stack", "layer", "parameters", "nan", "inf", "rms", "largest", "least norm gain", "largest norm gain"),
    *("output rms", "gradient norm"),
)
_LAYER = re.compile(r"(?P<stack>encoder|decoder)\.(?:transformer_)?layers\.(?P<layer>\d+)\.(?P<rest>.*)")
UNFILLED = "._float_tensor"
"""Ends the name of a buffer of fairseq's sinusoidal positions that is memory as it was found, for its device alone."""
_NORM = re.compile(r"(?:_layer_norm|_ln|layernorm|norm)\.weight$")


@dataclass
class Layer:
    """The parameters of a layer, and what they do on a batch."""

    stack: str
    layer: int
    """Counted from 1."""
    values: Tensor
    """All of them."""
    gains: Tensor
    """Of its norms."""
    output: float | None = None
    """Root mean square of the stream after it."""
    gradient: float | None = None

    def row(self) -> list[Cell]:
        finite = self.values[self.values.isfinite()]
        gains = self.gains[self.gains.isfinite()]
        return [
            self.stack,
            self.layer,
            self.values.numel(),
            int(self.values.isnan().sum()),
            int(self.values.isinf().sum()),
            finite.square().mean().sqrt().item() if finite.numel() else None,
            finite.abs().max().item() if finite.numel() else None,
            gains.min().item() if gains.numel() else None,
            gains.max().item() if gains.numel() else None,
            self.output,
            self.gradient,
        ]


@dataclass
class CheckpointDiagnosis:
    """Sentences, and the layers they are about."""

    happened: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)

    def text(self) -> str:
        """Return the report for the terminal."""
        lines = ["What it holds", *(f"  - {sentence}" for sentence in self.happened)]
        return "\n".join(lines + (["What to try", *(f"  - {s}" for s in self.advice)] if self.advice else []))


def diagnose_checkpoint(path: Path, device: str) -> CheckpointDiagnosis:
    """Look at the parameters, the optimizer's state, and where they are numbers at gradients on a synthetic batch.

    Raises:
        UserError: the file is damaged or is no checkpoint of fairseq.
    """
    state = load_fairseq(path, "cpu")
    found = CheckpointDiagnosis()
    _tell_progress(state, found)
    found.layers = _layers(state["model"])
    broken = _broken(state["model"])
    for name, (nan, inf, size) in list(broken.items())[:5]:
        found.happened.append(f"{name} has {nan:,} NaN and {inf:,} infinite numbers of {size:,}")
    if len(broken) > 5:
        found.happened.append(f"so have {len(broken) - 5} more of its {len(state['model'])} parameters")
    optimizer = _broken(_moments(state))
    if optimizer:
        found.happened.append(f"{len(optimizer)} tensors of the optimizer's state have numbers that are not finite")
    if broken or optimizer:
        found.advice += ["start again from an earlier checkpoint: no later update can mend this one", LOWER_RATE]
    else:
        found.happened.append("all parameters are finite")
    if broken:
        found.happened.append("gradients were not computed, they would be NaN")
    elif not _of_this_plugin(state):
        found.happened.append(
            "gradients were not computed: this is a checkpoint of stock fairseq, which `fairseq-residuals import --from"
            " fairseq FILE OUT` makes one of this plugin"
        )
    else:
        _gradients(path, device, found)
    return found


def _tell_progress(state: Mapping[str, Any], found: CheckpointDiagnosis) -> None:
    history = state.get("optimizer_history") or [{}]
    sentence = f"it was written after update {history[-1].get('num_updates', '?')}"
    scale = (state.get("last_optimizer_state") or {}).get("loss_scale")
    if scale is not None:
        sentence += f", at a loss scale of {show(float(scale))}"
        if scale < 1:
            found.advice.append(
                f"a loss scale below 1 means that fp16 overflows all the time: train in --bf16, or {LOWER_RATE}"
            )
    best = (state.get("extra_state") or {}).get("best")
    found.happened.append(
        sentence + (f"; the best validation so far was {show(float(best))}" if best is not None else "")
    )


def _broken(tensors: Mapping[str, Any]) -> dict[str, tuple[int, int, int]]:
    """Return, by name, how many entries are NaN and infinite, and how many there are."""
    found = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or name.endswith(UNFILLED):
            continue
        if not tensor.isfinite().all():
            found[name] = int(tensor.isnan().sum()), int(tensor.isinf().sum()), tensor.numel()
    return found


def _moments(state: Mapping[str, Any]) -> dict[str, Tensor]:
    per_parameter = (state.get("last_optimizer_state") or {}).get("state") or {}
    return {
        f"{number}.{name}": tensor
        for number, moments in per_parameter.items()
        if isinstance(moments, Mapping)
        for name, tensor in moments.items()
    }


def _layers(model: Mapping[str, Tensor]) -> list[Layer]:
    parts: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, tensor in model.items():
        place = _LAYER.fullmatch(name)
        if place and tensor.is_floating_point():
            parts.setdefault((place["stack"], int(place["layer"]) + 1), {})[place["rest"]] = tensor.float().flatten()
    return [
        Layer(
            stack,
            layer,
            torch.cat(list(tensors.values())),
            torch.cat([torch.empty(0), *(t for name, t in tensors.items() if _NORM.search(name))]),
        )
        for (stack, layer), tensors in sorted(parts.items(), key=lambda item: (item[0][0] != "encoder", item[0][1]))
    ]


def _of_this_plugin(state: Mapping[str, Any]) -> bool:
    settings = state["cfg"]["model"] if state.get("cfg") else state["args"]
    return "decoder_residual" in (settings if isinstance(settings, Mapping) else vars(settings))


def _gradients(path: Path, device: str, found: CheckpointDiagnosis) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    subject = make_subject(ModelSource(file=path), parser.parse_args([]), device_of(device))
    outputs = [e for e in run_forward(subject) if e.point == "layer output"]
    gradients = measures.parameter_gradients(subject)
    for layer in found.layers:
        layer.gradient = gradients[layer.stack][layer.layer - 1]
        event = next(e for e in outputs if (e.stack, e.layer) == (layer.stack, layer.layer))
        layer.output = event.tensor.float().square().mean().sqrt().item()
    for stack, norms in gradients.items():
        sentence = vanishing_sentence(stack, norms)
        if sentence:
            found.happened.append(f"on a synthetic batch, {sentence}")
            found.advice.append(OTHER_WIRING)

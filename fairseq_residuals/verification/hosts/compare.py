"""How far the plugin is from a golden file of the newer designs."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.models.state_dict_names import fairseq_name
from fairseq_residuals.verification.device import moved
from fairseq_residuals.verification.hosts.description import NewerGolden, Recipe, read
from fairseq_residuals.verification.hosts.host import build, load
from fairseq_residuals.verification.parity import CPU, ROUNDINGS, Parity, rounding

GRADIENTS = 5e-4
EXPLANATION = f"""\
Files of the newer designs: activations, logits and loss absolute (tolerance {Recipe.tolerance:g} unless said
otherwise below), gradients as a part of the largest magnitude in the tensor ({GRADIENTS:g}), those of the
biases of keys, which may be zero but for rounding, as a part of that in the gradient of their matrix;
what parameters of the wiring are before they are trained, exactly."""


def compare(path: Path, sidecar: dict[str, Any], recipe: Recipe, device: torch.device = CPU) -> tuple[str, Parity]:
    """The wiring that the file was compared with, and the errors.

    Raises:
        UserError: the file is damaged, or is not what its model needs.
    """
    golden = read(path, sidecar, recipe)
    model = build(golden)
    initial = {fairseq_name(name): p.detach().clone() for name, p in model.named_parameters()}
    load(golden, model)
    golden, model, initial = moved(golden, device), model.to(device), moved(initial, device)
    parity = compare_model(golden, model)
    parity.gradients |= {name: _largest(value) for name, value in golden.unused_gradients.items()}
    if recipe.initial_values:
        parity.initial = {name: _largest(initial[name] - value) for name, value in golden.initial.items()}
    else:
        parity.notes.append("init/* not compared, for training does not start from these values")
    return golden.wiring, parity


def compare_model(golden: NewerGolden, model: nn.Module) -> Parity:
    """Runs ``model``, which has the golden's weights, on the golden's batch.

    Raises:
        UserError: the golden lacks the gradient of a parameter, has one that the model lacks, lacks an output whose
            kind it has, or has one of another shape.
    """
    computed = recompute(golden, model)
    # a wiring without a stream has no output of a layer, and its file instead what its sub-layers are fed
    kinds = {_kind(name) for name in golden.outputs}
    lacking = [name for name in computed.outputs if name not in golden.outputs and _kind(name) in kinds]
    if lacking or not kinds & {"layer", "enc_layer", "sub/in"}:
        raise UserError(f"{golden.path} lacks the output {min(lacking, default='layer0')}")
    different = sorted(computed.gradients.keys() ^ golden.gradients.keys())
    if different:
        verb = "lacks" if different[0] in computed.gradients else "holds, unlike its model,"
        raise UserError(f"{golden.path} {verb} the gradient of {different[0]}")
    for name in golden.outputs.keys() & computed.outputs.keys():
        has, makes = (tuple(which.outputs[name].shape) for which in (golden, computed))
        if has != makes:
            raise UserError(
                f"{golden.path} has another shape of the output {name}, {has}, than its model makes, {makes}"
            )
    parity = measure(golden, computed)
    parity.not_compared = sorted(golden.outputs.keys() - computed.outputs.keys())
    if golden.recipe.reason:
        parity.notes.append(f"tolerance {golden.recipe.tolerance:g}: {golden.recipe.reason}")
    if parity.beyond():
        found = rounding(model, partial(recompute, golden), measure)
        parity.rounding = {name: ROUNDINGS * found[name] for name in parity.beyond()}
    return parity


def recompute(golden: NewerGolden, model: nn.Module) -> NewerGolden:
    """What the golden file would hold if ``model`` had made it."""
    dtype = next(model.parameters()).dtype
    model.zero_grad()
    inputs = {name: x.to(dtype) if x.is_floating_point() else x for name, x in golden.inputs.items()}
    outputs: dict[str, Tensor] = model(inputs)
    outputs["loss"].backward()
    gradients = {fairseq_name(name): p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return replace(golden, outputs={name: x.detach() for name, x in outputs.items()}, gradients=gradients)


def measure(golden: NewerGolden, computed: NewerGolden) -> Parity:
    """The errors of ``computed``, which is the same batch through some other model."""
    outputs = dict.fromkeys(("activations", "logits", "loss"), golden.recipe.tolerance)
    parity = Parity(tolerances=outputs | {"gradients": GRADIENTS, "initial": 0.0}, explanation=EXPLANATION)
    for name in golden.outputs.keys() & computed.outputs.keys():
        errors = getattr(parity, name if name in ("logits", "loss") else "activations")
        errors[name] = _largest(computed.outputs[name] - golden.outputs[name])
    for name, gradient in computed.gradients.items():
        scale = golden.scales[name]
        if name.endswith("k_proj.bias"):
            # without rotary positions it is a sum that cancels but for rounding
            scale = scale.maximum(golden.scales[name.replace("bias", "weight")].max())
        parity.gradients[name] = _largest((gradient - golden.gradients[name]) / scale.where(scale > 0, 1.0))
    return parity


def _kind(name: str) -> str:
    """Of an output: its name up to the number of a layer or sub-layer."""
    return re.split(r"\d", name)[0]


def _largest(values: Tensor) -> float:
    return values.abs().max().item()

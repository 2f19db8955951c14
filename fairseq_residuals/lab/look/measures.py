"""What is measured on one model, with :mod:`fairseq_residuals.lab.look.probes`."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_residuals.lab.look.probes import SUBLAYERS, Event, run_backward, run_forward
from fairseq_residuals.lab.look.subject import Subject, stacks
from fairseq_residuals.plugin.training.layer_statistics import gradient_norms

ABOVE = "norm above layer"
ByLayer = dict[str, list[float]]
"""By stack, a number for each layer from the bottom."""


def parameter_gradients(subject: Subject) -> ByLayer:
    """Return the norm of the loss's gradient with respect to all parameters of a layer, its wiring's included.

    Parameters that layers share count in each.
    """
    subject.backward()
    return stored_gradients(subject)


def stored_gradients(subject: Subject) -> ByLayer:
    """Return the gradients (:func:`parameter_gradients`) of the last pass."""
    norms = gradient_norms(subject.model)
    found: ByLayer = {}
    for path, module in subject.model.named_modules():
        if module in stacks(subject.model):
            values = [norms[f"gnorm/{path}.{i}"].item() for i in range(len(module))]
            found[module.shape.stack] = [value / subject.loss_scale for value in values]
    return found


def output_gradients(subject: Subject) -> ByLayer:
    """Return the norm of the loss's gradient with respect to what a layer gives, "x" of the stream."""
    seen, norms, _ = run_backward(subject)
    found: ByLayer = {}
    for event in seen:
        if event.point == "layer output":
            found.setdefault(event.stack, []).append(norms.get(id(event.tensor), 0.0))
    return found


@dataclass(frozen=True)
class PointInLayer:
    """A point inside a layer."""

    stack: str
    layer: int
    """Counted from 1."""
    point: str
    is_norm: bool
    """Whether it is what a norm of the wiring gives."""
    norm: float
    """Of the loss's gradient with respect to the tensor at this point."""


def parts(subject: Subject) -> list[PointInLayer]:
    """Return every tensor that the wiring of a layer handles, in the order in which they are made.

    Points of one name in a layer are counted: "norm FFN", "norm FFN (2)".
    """
    seen, norms, _ = run_backward(subject)
    told: set[int] = set()
    named: Counter[tuple[str, int, str]] = Counter()
    found = []
    for event in seen:
        # what one module gives the next takes as it is; a layer's input is listed in that layer too
        if event.layer and id(event.tensor) in norms and (event.point == "layer input" or id(event.tensor) not in told):
            place = (event.stack, event.layer, _name(event))
            named[place] += 1
            point = place[-1] if named[place] == 1 else f"{place[-1]} ({named[place]})"
            found.append(PointInLayer(event.stack, event.layer, point, event.point == "norm", norms[id(event.tensor)]))
        told.add(id(event.tensor))
    return found


def _name(event: Event) -> str:
    if event.kind is None:
        return {"norm input": "combined", "norm": ABOVE}.get(event.point, event.point)
    sublayer = SUBLAYERS[event.kind]
    names = {"norm input": "sum", "norm": "norm", "fed": "input of", "sublayer": "", "stream": "sum"}
    return f"{names[event.point]} {sublayer}".strip()


def similarity(subject: Subject) -> dict[str, Tensor]:
    """Return the mean cosine similarity of the outputs of every two layers, by stack, (L, L).

    The mean is over all positions that are not padding.
    """
    outputs: dict[str, list[Tensor]] = {}
    for event in run_forward(subject):
        if event.point == "layer output":
            outputs.setdefault(event.stack, []).append(_unpadded(event))
    found = {}
    for stack, tensors in outputs.items():
        directions = torch.nn.functional.normalize(torch.stack(tensors), dim=-1)
        found[stack] = torch.einsum("lpc,mpc->lm", directions, directions) / directions.size(1)
    return found


def change(subject: Subject) -> ByLayer:
    """Return the mean absolute difference between what the first sub-layers of successive layers are fed.

    The mean is over all channels of all positions that are not padding. There is one number less than there are layers.
    """
    fed: dict[str, dict[int, Tensor]] = {}
    for event in run_forward(subject):
        if event.point == "fed" and event.kind == "self":
            # of a layer that is evaluated several times, the first
            fed.setdefault(event.stack, {}).setdefault(event.layer, _unpadded(event))
    return {
        stack: [(above - below).abs().mean().item() for below, above in itertools.pairwise(x.values())]
        for stack, x in fed.items()
    }


def _unpadded(event: Event) -> Tensor:
    """(positions, C), in at least single precision."""
    x = event.tensor.detach()
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x.flatten(0, 1) if event.padding is None else x[~event.padding.T]

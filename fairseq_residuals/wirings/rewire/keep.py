"""Start a wiring where it computes what the model computed before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.build import Options
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import CONNECTIONS
from fairseq_residuals.wirings.rewire.rewiring import Rewiring

Value = float | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Start:
    """Options and values with which a wiring adds to a Pre-LN model nothing but what can be learned."""

    options: Options = field(default_factory=dict)
    """Values of options that the user did not choose."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """A number, or a function of the parameter, by the end of the parameter's name."""
    copies: Mapping[str, float] = field(default_factory=dict)
    """Factor on the gain that the model's norm has at that place, by the end of the norm's name."""


def _newest(weight: Tensor) -> Tensor:
    """Return weights (layers + 1, layers + 1, ...) by which each layer reads what is right below; gains (C) stay."""
    return weight if weight.dim() == 1 else torch.eye(len(weight)).unsqueeze(-1).expand_as(weight)


STARTS = {
    "backout": Start(values={"backout_weight": 0.0}),
    "dlcl_pre": Start({"norm": False}, {"weight": _newest}),
    # half of what each norm returns is read at the start
    "gated_residual": Start(copies={"norms.*": 2.0}),
    "layer_scale": Start({"gain": 1.0}),
    # all streams are alike then, and mixing them changes nothing
    "mhc": Start(values={"router.scale": 0.0}),
    "mudd": Start(copies={"k_norm": 1.0, "v_norm": 1.0}),
    "re_zero": Start(values={"gain": 1.0}),
    "unet_skip": Start({"gate": "none"}, {"skip_weight": 0.0}),
}
"""Starts by wiring; those that start as Pre-LN by themselves need nothing."""
OF_OPTIONS: Mapping[str, Value] = {"value_residual.first_weight": 0.0, "value_residual.own_weight": 1.0}
"""Values of options that every wiring has."""
EPS = ("eps", "variance_epsilon")
ALIKE = 0.01
"""Share of its size by which a norm's input may miss a multiple of its former input, to be taken for one.

Where that is less, four times the eps of the input's type: bfloat16 rounds by so much.
"""


@torch.no_grad()
def start_values(rewiring: Rewiring) -> None:
    """Set the parameters of each wiring of a stack where it starts as the model that was."""
    for variant, layers in rewiring.segments():
        start = STARTS.get(variant.name, Start())
        _set(variant, start, {"": rewiring.top_norm})
        for layer in layers:
            wired: Any = layer.wiring
            norms = {CONNECTIONS[kind]: sub.movable_norm for kind, sub in wired.described.items()}
            _set(wired, start, {name: layer.get_submodule(norm) if norm else None for name, norm in norms.items()})


def _set(wiring: nn.Module, start: Start, norms: Mapping[str, nn.Module | None]) -> None:
    """Set what a wiring owns of a layer, or above the layers.

    Args:
        norms: of the model, by the names of the connections that normalise in their place.

    Raises:
        UserError: a norm of the wiring is of another kind than the model's.
    """
    values = {**OF_OPTIONS, **start.values}
    for name, parameter in wiring.named_parameters():
        for value in (value for ending, value in values.items() if f".{name}".endswith(f".{ending}")):
            parameter.copy_(value(parameter) if callable(value) else torch.full_like(parameter, value))
    for owner, norm in norms.items():
        if norm is None:
            continue
        own: Any
        for name, own in wiring.get_submodule(owner).named_modules():
            for factor in (factor for ending, factor in start.copies.items() if fnmatch(f".{name}", f"*.{ending}")):
                weight: Any = getattr(norm, "weight", None)  # as wide as the stream, where the wiring's is one number
                gain, bias = gain_and_bias(norm, own.weight if weight is None else weight)
                if own.weight.shape != gain.shape or (bias is not None and not hasattr(own, "bias")):
                    raise UserError(
                        f"the wiring's {type(own).__name__} cannot take what the model's {type(norm).__name__} has"
                        ' learned; leave out norm_type, or start="paper" wires it nevertheless'
                    )
                own.weight.copy_(factor * gain)
                if bias is not None:
                    own.bias.copy_(factor * bias)


def is_rms(norm: Any, ones: Tensor) -> bool:
    """Return whether a norm leaves the mean of what it is given in place.

    Args:
        ones: (C), of the norm's type and device.
    """
    if getattr(norm, "bias", None) is not None:
        return False
    return ones.is_meta or bool(type(norm).forward(norm, ones).any())


def gain_and_bias(norm: Any, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return what a norm of the model multiplies by, and adds; some keep the distance of the gain from 1."""
    bias = getattr(norm, "bias", None)
    eps = next(iter(eps_of(norm).values()), 0.0)
    signs = torch.ones_like(like)  # and -1 for every other one: a mean of 0 and a mean square of 1
    signs[1::2] = -1
    normal = type(norm).forward(norm, signs)
    return (normal if bias is None else normal - bias) * signs * (1 + eps) ** 0.5, bias


def calibrate(
    rewiring: Rewiring,
    before: Mapping[str, list[Tensor]],
    seen: Mapping[str, list[Tensor]],
    eps: Mapping[str, Mapping[str, float]],
) -> bool:
    """Scale the eps of norms that are given a multiple of what they were given; return whether one has changed.

    Streams are added up, and sources averaged, before the norms of some wirings: norm(r x) with r^2 eps is norm(x).

    Args:
        before: by name of a norm, what it was given by the model that was; of a last one, what the last layer returned.
        seen: what the wiring gives it.
        eps: what the model had.
    """
    changed = False
    for name, norm in rewiring.norms().items():
        ratios = {float(f"{multiple(before[name][0], given) or 1.0:.3g}") for given in seen[name]}
        r = ratios.pop() if len(ratios) == 1 else 1.0
        scaled = {attribute: value * r**2 for attribute, value in eps[name].items()}
        changed = changed or scaled != eps_of(norm)
        vars(norm).update(scaled)
    return changed


def rescale(rewiring: Rewiring, before: Mapping[str, list[Tensor]], returned: Mapping[str, list[Tensor]]) -> bool:
    """Divide what is added up of several streams by their number, where no norm follows; return whether that changed.

    What is above would be given so many times as much, or, where sources are averaged, so many times less.

    Args:
        before: what the layers below such places returned in the model that was, by their names.
        returned: what they return now.
    """
    changed = False
    for name, factor in rewiring.factors.items():
        r = multiple(before[name][0], returned[name][0]) or 1.0
        number = round(max(r, 1 / r))
        factor.number *= 1 / number if r > 1 else number
        changed = changed or number > 1
    return changed


def multiple(x: Tensor, y: Tensor) -> float | None:
    """Return the number r for which y is r x; None where there is none.

    Args:
        x: (B, T, C), or (B * T, C); or (1, N).
        y: (B, T, C), or several of them, (B, T, n, C); or (1, N).
    """
    largest = max(ALIKE, 4 * torch.finfo(y.dtype).eps)
    x, y = x.double(), y.double()
    x = x.unflatten(0, y.shape[:2]) if x.dim() == 2 < y.dim() and len(x) == y.shape[:2].numel() else x
    if x.shape[:2] != y.shape[:2]:
        return None
    x = x.unsqueeze(-2).expand_as(y) if y.dim() > x.dim() else x
    r = float((x * y).sum() / x.square().sum())
    alike = torch.linalg.vector_norm(y - r * x) <= largest * torch.linalg.vector_norm(y)
    return r if alike and r > 0 else None


def eps_of(norm: nn.Module) -> dict[str, float]:
    """Return what a norm calls its eps, and its value."""
    return {name: getattr(norm, name) for name in EPS if isinstance(getattr(norm, name, None), float)}

"""The state of an optimizer under the authors' names and layout of parameters, made that of this plugin's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Values
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name

ELEMENTWISE = ("adam", "nag", "sgd")
"""Optimizers whose state is a value per parameter, or one for all, in every version of fairseq."""


class Untranslatable(Exception):
    """Why the state has to be left out."""


def translate_state(
    state: Any, optimizer: str, parameters: Values, translate: Callable[[Values], Values], model: nn.Module
) -> dict[str, Any]:
    """Return the state for ``model``, as fairseq-train resumes it.

    Moments are split and renamed like the parameters that they belong to. The one vector that ``--fp16`` makes of all
    parameters is taken apart and put together again.

    Args:
        state: of a checkpoint.
        optimizer: its name.
        parameters: of the checkpoint, under the authors' names and in their order.
        translate: to this plugin's names.
        model: with its parameters.

    Raises:
        Untranslatable: the state does not fit the parameters, or belongs to another kind of optimizer.
    """
    if not state:
        raise Untranslatable("there is none")
    if optimizer not in ELEMENTWISE:
        raise Untranslatable(f"the layout of {optimizer}'s is not known")
    if not isinstance(state, dict) or len(state.get("param_groups", ())) != 1:
        raise Untranslatable("it has several groups of parameters")
    learned, places = _learned(parameters, translate, model), _places(model)
    count = len(set(places.values()))
    group = state["param_groups"][0]
    # until 1.5 PyTorch called parameters by their addresses
    order = {key: i for i, key in enumerate(group["params"])}
    values = {order[key]: own for key, own in state.get("state", {}).items() if key in order}
    if not values:
        raise Untranslatable("it is empty")
    flat = len(group["params"]) == 1 < len(learned)
    by_name = _taken_apart(values[0], learned) if flat else _named(values, list(learned), len(group["params"]))
    new: dict[int, dict[str, Any]] = {}
    for key in sorted({key for own in by_name.values() for key in own}):
        moments = {name: _expanded(own[key], learned[name], key) for name, own in by_name.items() if key in own}
        kind = next(type(own[key]) for own in by_name.values() if key in own)
        single = next(_is_single(own[key]) for own in by_name.values() if key in own)
        for name, value in translate(moments).items():
            if name not in places:
                raise Untranslatable(f"the model has no {name}")
            one = value.flatten()[0] if single else value
            new.setdefault(places[name], {})[key] = one.clone() if kind is Tensor else kind(one)
    if flat:
        new, count = {0: _put_together(new, count)}, 1
    return state | {"state": new, "param_groups": [group | {"params": list(range(count))}]}


def _places(model: nn.Module) -> dict[str, int]:
    """Return, by each of its names, which of the model's parameters it is for an optimizer."""
    order = {id(p): i for i, p in enumerate(p for p in model.parameters() if p.requires_grad)}
    named = model.named_parameters(remove_duplicate=False)
    return {fairseq_name(name): order[id(p)] for name, p in named if p.requires_grad}


def _learned(parameters: Values, translate: Callable[[Values], Values], model: nn.Module) -> Values:
    """Return the parameters that the optimizer had, in order: no buffers, a shared one once, none that is fixed."""
    fixed = {fairseq_name(name) for name, p in model.named_parameters() if not p.requires_grad}
    # what becomes of a parameter is known when all are translated together
    tags = {name: torch.tensor(i).expand(value.shape) for i, (name, value) in enumerate(parameters.items())}
    left_out = {int(tag.flatten()[0]) for name, tag in translate(tags).items() if name in fixed}
    seen: set[int] = set()
    learned: Values = {}
    for i, (name, value) in enumerate(parameters.items()):
        if i in left_out or value.data_ptr() in seen or name.endswith((".version", "._float_tensor")):
            continue
        seen.add(value.data_ptr())
        learned[name] = value
    return learned


def _named(values: dict[int, Any], names: list[str], count: int) -> dict[str, dict[str, Any]]:
    if count != len(names):
        raise Untranslatable(f"it is of {count} parameters, and the checkpoint has {len(names)}")
    return {names[i]: own for i, own in values.items()}


def _taken_apart(own: dict[str, Any], learned: Values) -> dict[str, dict[str, Any]]:
    sizes = [value.numel() for value in learned.values()]
    by_name: dict[str, dict[str, Any]] = {name: {} for name in learned}
    for key, value in own.items():
        if not _is_single(value) and value.numel() != sum(sizes):
            raise Untranslatable(f"it is of {value.numel():,} numbers, and the checkpoint has {sum(sizes):,}")
        pieces = [value] * len(sizes) if _is_single(value) else value.split(sizes)
        for (name, parameter), piece in zip(learned.items(), pieces, strict=True):
            by_name[name][key] = piece if _is_single(value) else piece.view_as(parameter)
    return by_name


def _put_together(new: dict[int, dict[str, Any]], count: int) -> dict[str, Any]:
    if sorted(new) != list(range(count)):
        raise Untranslatable("it does not cover all parameters")
    joint = {key: [new[i][key] for i in range(count)] for key in new[0]}
    return {
        key: pieces[0] if _is_single(pieces[0]) else torch.cat([piece.flatten() for piece in pieces])
        for key, pieces in joint.items()
    }


def _is_single(value: Any) -> bool:
    """Return whether it is one number for all of a parameter, such as how often it was updated."""
    return not isinstance(value, Tensor) or value.dim() == 0


def _expanded(value: Any, parameter: Tensor, key: str) -> Tensor:
    """Return a single number as a tensor of the parameter's shape: it is split and renamed as everything else."""
    if isinstance(value, Tensor) and (value.dim() == 0 or value.shape == parameter.shape):
        return value.expand(parameter.shape)
    if not isinstance(value, (int, float)):
        raise Untranslatable(f"its {key} does not fit the parameters")
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None).expand(parameter.shape)

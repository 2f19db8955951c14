"""An optimizer's groups of parameters, with the settings that wirings ask for.

What is multiplied, and by what, is :mod:`fairseq_residuals.wirings.core.depth_mup`'s, and each variant's
``update_scales``.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fairseq_residuals.wirings.core.base import Connection
from fairseq_residuals.wirings.core.depth_mup import UpdateScale
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.rewire.rewiring import Rewiring

Scales = dict[nn.Parameter, UpdateScale]
SAME = UpdateScale()


def scales_of(model: nn.Module) -> Scales:
    """Return the parameters whose settings are not the optimizer's own, and what these are multiplied by."""
    scales: Scales = {}
    for stack in _stacks(model):
        for variant, layers in stack.segments():
            scales |= variant.update_scales(layers)
    return {parameter: scale for parameter, scale in scales.items() if scale != SAME}


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0, eps: float = 1e-8, matrices: bool = False
) -> list[dict[str, Any]]:
    """Sort the trained parameters of a model by the settings that its wirings ask of Adam or AdamW.

    Args:
        model: with at least one wired stack; what lies outside of the stacks has the settings as they are.
        lr: rate of Adam at the base depth and the base width.
        weight_decay: of AdamW, at the base width.
        eps: of Adam, at the base depth and the base width.
        matrices: whether matrices get groups of their own, for ``torch.optim.Muon``. They are the weights of
            linear maps in sub-layers; routers, depth weights and whatever else is a wiring's is Adam's, as are
            embeddings and the output projection.

    Returns:
        Groups with params, lr, weight_decay and eps, each parameter in one of them. With ``matrices``, each group also
        says by the key "matrices" whether it is of these, and such a group has no eps: Muon's is another thing.

    Raises:
        UserError: the model has no wired stack, or ``matrices`` meets a wiring whose rates depend on width (muP), which
            is a rule of Adam's.
    """
    stacks = _stacks(model)
    if not stacks:
        raise UserError(
            "this model has no wired stack; give one that was rewired, or that holds what build_stack or wrap returned"
        )
    scales, of_matrices = scales_of(model), _matrices(stacks) if matrices else set()
    groups: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {}
    for parameter in (p for p in model.parameters() if p.requires_grad):
        scale = scales.get(parameter, SAME)
        settings = {"lr": lr * scale.rate, "weight_decay": weight_decay * scale.decay}
        if parameter not in of_matrices:
            settings["eps"] = eps * scale.eps
        elif scale.decay != 1.0:
            raise UserError("option mup scales Adam's rates by width, which are no rates of Muon: leave out matrices")
        if matrices:
            settings["matrices"] = parameter in of_matrices
        groups.setdefault(tuple(settings.items()), []).append(parameter)
    return [{"params": parameters, **dict(settings)} for settings, parameters in groups.items()]


def _stacks(model: nn.Module) -> list[Stack | Rewiring]:
    return [module for module in model.modules() if isinstance(module, Stack | Rewiring)]


def _matrices(stacks: list[Stack | Rewiring]) -> set[nn.Parameter]:
    """Return the weights of linear maps inside sub-layers."""
    layers = [layer for stack in stacks for _, layers in stack.segments() for layer in layers]
    theirs = {p for layer in layers for m in layer.modules() if isinstance(m, Connection) for p in m.parameters()}
    modules: list[Any] = [m for layer in layers for m in layer.modules()]
    # GPT-2's of transformers are of a class Conv1D, and have their matrix transposed
    linear = [m for m in modules if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]
    return {m.weight for m in linear if isinstance(m.weight, nn.Parameter) and m.weight not in theirs}

"""How this plugin builds the model of a golden file: what recipes of fairseq's models and of others have in common."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name
from tests.golden_check.fixtures import Golden
from tests.golden_check.tolerances import Tolerances

if TYPE_CHECKING:
    from collections.abc import Callable


def batch_first(x: Tensor) -> Tensor:
    """(T, B, C) -> (B, T, C); attention scores (B, H, T, S) stay as they are."""
    return x.transpose(0, 1) if x.dim() == 3 else x


def parts_of_stream(s: Stream) -> dict[str, Tensor]:
    """Return what a file holds of a stream below or above a layer, by the ending of its name: x has none, y has _y."""
    return {"" if key == "x" else f"_{key}": batch_first(value) for key, value in s.items()}


@dataclass(frozen=True, kw_only=True)
class GoldenRecipe(ABC):
    """How this plugin builds what the authors' code computed, and under which names the file has it."""

    fixed: Mapping[str, float] = field(default_factory=dict)
    """By regular expression: parameters that the authors' code does not have, and their constant value."""
    unused: str = "(?!)"
    """A regular expression for the authors' names of parameters that have no effect, and that this plugin lacks."""
    eps: float = 0.0
    """Of every norm, if it is not the one that this plugin has; 0: leave them."""
    layer_outputs: Callable[[Stream], dict[str, Tensor]] = parts_of_stream
    """What the file holds of the stream after a layer, by what follows ``out/dec_layer{i}`` in its name."""
    initial_values: bool = True
    """Whether the values that the file has from before it was perturbed are those of a model that is to be trained."""

    @property
    @abstractmethod
    def tolerances(self) -> Tolerances: ...

    @abstractmethod
    def authors_of(self, description: dict[str, Any]) -> Authors:
        """Return whose names the parameters have."""

    @abstractmethod
    def wiring_of(self, golden: Golden) -> str:
        """Return what the model of ``golden`` has for --residual."""

    @abstractmethod
    def build(self, golden: Golden) -> nn.Module:
        """Return the model of ``golden``, with weights of its own."""

    def adapt(self, golden: Golden) -> Golden:
        """Return ``golden`` with the authors' conventions turned into fairseq's."""
        return golden


def rebuild(golden: Golden) -> nn.Module:
    """Build the model of ``golden`` and give it the golden's weights; it is in evaluation mode."""
    model = build(golden)
    load(golden, model)
    return model


def build(golden: Golden) -> nn.Module:
    """Build the model of ``golden``, with weights of its own."""
    model = golden.recipe.build(golden)
    for module in model.modules():
        if golden.recipe.eps and isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            module.eps = golden.recipe.eps
    return model.eval()


@torch.no_grad()
def load(golden: Golden, model: nn.Module) -> None:
    """Give ``model`` the golden's weights, which have to be exactly those that it has."""
    needed = {fairseq_name(name) for name, _ in model.named_parameters()}
    # what two modules share has a name of each; buffers such as Admin's omegas are weights, too
    named: list[tuple[str, Tensor]] = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    tensors = {fairseq_name(name): x for name, x in named}
    fixed = {
        name: value for name in needed for pattern, value in golden.recipe.fixed.items() if re.fullmatch(pattern, name)
    }
    assert needed <= golden.parameters.keys() | fixed.keys(), sorted(needed - golden.parameters.keys() - fixed.keys())
    assert golden.initial.keys() <= needed, sorted(golden.initial.keys() - needed)
    for name, value in (*golden.initial.items(), *golden.parameters.items()):
        assert value.shape == tensors[name].shape, name
    for name, value in golden.parameters.items():
        tensors[name].copy_(value)
    for name in fixed.keys() - golden.parameters.keys():
        tensors[name].fill_(fixed[name]).requires_grad_(False)

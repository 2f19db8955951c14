"""How a golden file of the newer designs is described, and what is read from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.checkpoints.importing.parameter_names import Authors, Values, translate
from fairseq_residuals.core.base import Stream
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.verification.golden_file import Arrays


def first_batch(s: Stream) -> dict[str, Tensor]:
    """What most golden files hold of a stream: x, (T, B, C), as (B, T, C)."""
    return {"": s["x"].transpose(0, 1)}


@dataclass(frozen=True)
class Recipe:
    """How this plugin builds what the authors' code computed, and under which names the file has it."""

    wiring: str | Callable[[NewerGolden], str]
    """For --residual, or what makes it of the sidecar."""
    authors: Authors
    """The names of the authors' parameters, made those of a checkpoint of :class:`..host.Host`."""
    activation: Callable[[Tensor], Tensor] = torch.relu
    """Of the FFN; of a gated one: of what ``fc1`` gives, gate and value side by side."""
    rotary: Literal["", "half", "interleaved"] = ""
    """Which channels of a head rotary positions turn together: i and i + half, or 2i and 2i + 1."""
    rotary_at: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj")
    """The modules of a layer whose output they turn."""
    query_key_norm: bool = False
    """Norms of the surroundings on all heads' queries and keys together (``q_proj.norm``), below rotary positions."""
    causal: bool = True
    eps: float = 0.0
    """Of every norm, if it is not the one that this plugin has; 0: leave them."""
    top_norm: bool = False
    """A norm (``top_norm``) on top of the stack that is no part of the wiring."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    """By regular expression: parameters that the authors' code does not have, and their constant value."""
    unused: str = "(?!)"
    """A regular expression for the authors' names of parameters that have no effect, and that this plugin lacks."""
    layer_outputs: Callable[[Stream], dict[str, Tensor]] = first_batch
    """What the file holds of the stream after a layer, by what follows ``out/layer{i}`` in its name."""
    tolerance: float = 2e-5
    """Of whatever is no gradient."""
    reason: str = ""
    """For another tolerance than the other files have."""
    initial_values: bool = True
    """Whether the values that the file has from before it was perturbed are those of a model that is to be trained."""
    build: Callable[[NewerGolden], nn.Module] | None = None
    """The model, where it is not a :class:`..host.Host`; see there what it takes and returns."""


@dataclass(frozen=True)
class NewerGolden:
    """A golden file, parameters and gradients under this plugin's names."""

    path: Path
    sidecar: dict[str, Any]
    recipe: Recipe
    parameters: Values
    gradients: Values
    scales: Values
    """The largest magnitude in the gradient that the file has, for each number of :attr:`gradients`."""
    unused_gradients: Values
    """Of what this plugin lacks, under the authors' names."""
    initial: Values
    """``init/*``: what some parameters were when the model was made."""
    inputs: dict[str, Tensor]
    """``in/*``."""
    outputs: dict[str, Tensor]
    """``out/*`` and, under their whole names, all others."""

    def told(self, *keys: str) -> Any:
        """An entry of the sidecar, or one within an entry.

        Raises:
            UserError: it is not there.
        """
        value: Any = self.sidecar
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                sidecar = self.path.with_suffix(".json")
                raise UserError(f"{sidecar} lacks {'.'.join(keys)}, which files of its kind have")
            value = value[key]
        return value

    def number(self, *keys: str) -> int:
        """A positive whole number of the sidecar.

        Raises:
            UserError: it is not there, or is something else.
        """
        value = self.told(*keys)
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = 0
        if number < 1 or str(number) != str(value):
            raise UserError(
                f"{self.path.with_suffix('.json')}: {'.'.join(keys)} must be a positive whole number, not {value!r}"
            )
        return number

    def depth(self, stack: str = "layers") -> int:
        """How many layers have parameters ``stack.0. ...``."""
        found = [int(m[1]) for m in map(re.compile(rf"{re.escape(stack)}\.(\d+)\.").match, self.parameters) if m]
        return max(found, default=-1) + 1

    def need(self, name: str) -> Tensor:
        """A parameter.

        Raises:
            UserError: it is not there.
        """
        if name not in self.parameters:
            raise UserError(f"{self.path} lacks param/{name}, which golden files of its kind have")
        return self.parameters[name]

    @property
    def wiring(self) -> str:
        """For --residual."""
        return self.recipe.wiring if isinstance(self.recipe.wiring, str) else self.recipe.wiring(self)


def read(path: Path, sidecar: dict[str, Any], recipe: Recipe) -> NewerGolden:
    """
    Raises:
        UserError: the file is damaged, or lacks something that its kind has.
    """
    arrays = Arrays(path)
    for name in ("embed", "final_norm", "logits", "loss") if "in/ids" in arrays.names else ("loss",):
        arrays.need(f"out/{name}")
    prefixes = ("param/", "grad/", "init/", "in/", "out/")
    parameters, gradients, initial, inputs, outputs = map(arrays.under, prefixes)
    unused = re.compile(recipe.unused)

    def ours(values: Values) -> Values:
        return translate({name: value for name, value in values.items() if not unused.match(name)}, recipe.authors)

    return NewerGolden(
        path,
        sidecar,
        recipe,
        parameters=ours(parameters),
        gradients=ours(gradients),
        scales=ours({name: torch.full_like(x, x.abs().max().item()) for name, x in gradients.items()}),
        unused_gradients={name: value for name, value in gradients.items() if unused.match(name)},
        initial=ours(initial),
        inputs=inputs,
        outputs=outputs | {name: arrays.need(name) for name in arrays.names if not name.startswith(prefixes)},
    )

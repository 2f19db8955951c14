"""Golden files: a small model of the authors' own code, one batch, and everything that was computed with it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Values, translate
from tests.golden_check.archive import read_arrays

if TYPE_CHECKING:
    from tests.golden_check.rebuild import GoldenRecipe

_TOKENS = {"src": "src_tokens", "tgt": "prev_output_tokens"}
_KNOWN = ("param/", "grad/", "init/", "in/", "out/", "loss/", "gen/", "buf/")
FORMULAS = ("fairseq-0.9", "fairseq-0.12", "nll", "weighted")


@dataclass(frozen=True)
class Generation:
    """What the authors' generator made of some sentences."""

    src_tokens: Tensor | None
    """(B, S); None for a language model."""
    prefix: Tensor | None
    """(B, P), what the sentences of a language model have to start with."""
    tokens: Tensor
    """(B, beam, T), the end of the sentence included; best hypothesis first."""
    scores: Tensor
    """(B, beam): mean log-probability of a token."""
    positional_scores: Tensor
    """(B, beam, T): log-probabilities."""
    max_len: int
    """Tokens after which the end of the sentence is forced."""
    min_len: int
    lenpen: float


@dataclass(frozen=True)
class Golden:
    """A golden file, parameters and gradients under the names of this plugin's checkpoints."""

    path: Path
    description: dict[str, Any]
    """The sidecar."""
    recipe: GoldenRecipe
    pad: int | None
    """The word that fills up sentences; None: there is none, and every position counts."""
    loss: str
    """How the loss is computed, one of :data:`FORMULAS`; see :func:`.recompute.loss_of`."""
    label_smoothing: float
    parameters: Values
    gradients: Values
    """Of the training loss."""
    scales: Values
    """The largest magnitude in the gradient that the file has, for each number of :attr:`gradients`."""
    unused_gradients: Values
    """Of what this plugin lacks, under the authors' names."""
    initial: Values
    """What some parameters were when the model was made."""
    inputs: dict[str, Tensor]
    """By name, as in the file: ``src_tokens`` (B, S), ``prev_output_tokens`` and ``target`` (B, T), or instead of
    tokens ``src_vectors`` (B, S, C) and ``tgt_vectors`` (B, T, C); ``loss_weight`` (B, S or T, C)."""
    activations: dict[str, Tensor]
    """(B, S or T, C), (B, S or T, streams, C) or for attention scores (B, H, T, S or T), by name."""
    logits: dict[str, Tensor]
    """(B, T, V) by mode: evaluation, training, incremental; none where the output is vectors."""
    losses: dict[str, float] = field(default_factory=dict)
    """By kind: train and eval (by :attr:`loss`), fairseq-0.9, fairseq-0.12, nll."""
    generations: dict[str, Generation] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    """Arrays that the layout does not have."""

    @property
    def heads(self) -> int:
        return int(self.description["sizes"]["heads"])

    @property
    def wiring(self) -> str:
        """For --residual."""
        return self.recipe.wiring_of(self)

    def setting(self, *keys: str) -> int:
        """Return a whole number among the authors' settings, by the names of nested entries."""
        value: Any = self.description["provenance"]
        for key in keys:
            value = value[key]
        return int(value)

    def depth(self, stack: str) -> int:
        """Return how many layers have parameters ``stack.0. ...``."""
        numbers = [int(m[1]) for m in map(re.compile(rf"{re.escape(stack)}\.(\d+)\.").match, self.parameters) if m]
        return max(numbers, default=-1) + 1

    def words(self, side: str) -> Tensor:
        """Return where the source ("src") or the target ("tgt") is not padding: (B, S or T)."""
        tokens, vectors = self.inputs.get(_TOKENS[side]), self.inputs.get(f"{side}_vectors")
        if tokens is not None and self.pad is not None:
            return tokens.ne(self.pad)
        given = tokens if tokens is not None else vectors
        assert given is not None
        return torch.ones(given.shape[:2], dtype=torch.bool, device=given.device)


def read_golden(path: Path, sidecar: dict[str, Any], recipe: GoldenRecipe) -> Golden:
    """Read a golden file.

    Args:
        sidecar: its description.
        recipe: how its model is built.
    """
    arrays = {name: torch.from_numpy(array) for name, array in read_arrays(path).items()}
    inputs, outputs, losses = (_under(prefix, arrays) for prefix in ("in/", "out/", "loss/"))
    loss = sidecar["loss"]
    golden = Golden(
        path,
        sidecar,
        recipe,
        pad=sidecar.get("pad"),
        loss=loss,
        label_smoothing=float(sidecar["label_smoothing"]) if loss.startswith("fairseq") else 0.0,
        **_by_our_names(sidecar, recipe, arrays),
        inputs=inputs,
        activations={name: value for name, value in outputs.items() if not name.startswith("logits")},
        logits=_logits(outputs) if "prev_output_tokens" in inputs else {},
        losses={name: value.item() for name, value in losses.items() if name != "at_initialization"},
        generations=_generations(sidecar, arrays),
        unknown=tuple(sorted(name for name in arrays if not name.startswith(_KNOWN))),
    )
    return recipe.adapt(golden)


def _under(prefix: str, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return everything whose name starts with ``prefix``, by the rest of the name."""
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}


def _logits(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return logits by mode."""
    modes = {"evaluation": outputs["logits"], "training": outputs.get("logits_training", outputs["logits"])}
    return modes | ({"incremental": outputs["logits_incremental"]} if "logits_incremental" in outputs else {})


def _by_our_names(description: dict[str, Any], recipe: GoldenRecipe, arrays: dict[str, Tensor]) -> dict[str, Any]:
    """Return parameters, gradients and initial values."""
    unused = re.compile(recipe.unused)
    authors = recipe.authors_of(description)
    parameters, gradients, initial = (_under(prefix, arrays) for prefix in ("param/", "grad/", "init/"))

    def ours(values: Values) -> Values:
        return _joined(translate({name: value for name, value in values.items() if not unused.match(name)}, authors))

    return {
        "parameters": ours(parameters),
        "gradients": ours(gradients),
        "scales": ours({name: torch.full_like(x, x.abs().max().item()) for name, x in gradients.items()}),
        "unused_gradients": {name: value for name, value in gradients.items() if unused.match(name)},
        "initial": ours(initial),
    }


def _joined(values: Values) -> Values:
    """Join the first matrices of a gated FFN, ``fc1.gate`` and ``fc1.up``, to one."""
    joined = {}
    for name, value in values.items():
        if ".fc1.gate." in name:
            value = torch.cat([value, values[name.replace(".gate.", ".up.")]])
        if ".fc1.up." not in name:
            joined[name.replace(".fc1.gate.", ".fc1.")] = value
    return joined


def _generations(description: dict[str, Any], arrays: dict[str, Tensor]) -> dict[str, Generation]:
    """Return generations by name: ``beam4``, ``greedy``."""
    names = [m[1] for m in map(re.compile(r"gen/(\w+)/tokens").fullmatch, arrays) if m]
    src_tokens, prefix = (arrays.get(f"gen/{key}") for key in ("src_tokens", "prefix"))
    generations = {}
    for name in names:
        parts = {part: arrays[f"gen/{name}/{part}"] for part in ("tokens", "scores", "positional_scores")}
        limits = {key: description["generation"][key] for key in ("max_len", "min_len", "lenpen")}
        generations[name] = Generation(src_tokens, prefix, **parts, **limits)
    return generations

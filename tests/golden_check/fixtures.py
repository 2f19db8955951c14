"""Golden files: a small model of the authors' own code, one batch, and everything that was computed with it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Values, translate
from fairseq_residuals.wirings.core.errors import UserError
from tests.golden_check.archive import read_arrays

if TYPE_CHECKING:
    from tests.golden_check.rebuild import GoldenRecipe

_TOKENS = {"src": "src_tokens", "tgt": "prev_output_tokens"}
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
    def sidecar(self) -> Path:
        return self.path.with_suffix(".json")

    @property
    def heads(self) -> int:
        return whole_number(self.sidecar, self.description, "sizes", "heads")

    @property
    def wiring(self) -> str:
        """For --residual."""
        return self.recipe.wiring_of(self)

    def setting(self, *keys: str) -> int:
        """Return a positive whole number among the authors' settings.

        Raises:
            UserError: it is not there, or is something else.
        """
        return whole_number(self.sidecar, self.description, "provenance", *keys)

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

    def need(self, name: str, dims: int = 2) -> Tensor:
        """Return a parameter.

        Raises:
            UserError: it is not there, or has another number of dimensions.
        """
        if name not in self.parameters:
            raise UserError(f"{self.path} lacks param/{name} (by this plugin's name)")
        value = self.parameters[name]
        if value.dim() != dims:
            raise UserError(f"{self.path} has another shape of {name}, {tuple(value.shape)}, of {dims} dimensions")
        return value


def read_golden(path: Path, sidecar: dict[str, Any], recipe: GoldenRecipe) -> Golden:
    """Read a golden file.

    Args:
        sidecar: its description.
        recipe: how its model is built.

    Raises:
        UserError: the file is damaged, or it or its description is not what the layout demands.
    """
    arrays = _Arrays(path, {name: torch.from_numpy(array) for name, array in read_arrays(path, sidecar).items()})
    settings = _settings(path.with_suffix(".json"), sidecar)
    inputs, outputs, losses = arrays.under("in/"), arrays.under("out/"), arrays.under("loss/")
    logits = _logits(arrays, inputs, outputs)
    golden = Golden(
        path,
        sidecar,
        recipe,
        **settings,
        **_by_our_names(path, sidecar, recipe, arrays),
        inputs=inputs,
        activations={name: value for name, value in outputs.items() if not name.startswith("logits")},
        logits=logits,
        losses={name: value.item() for name, value in losses.items() if name != "at_initialization"},
        generations=_generations(path.with_suffix(".json"), sidecar, arrays),
        unknown=arrays.unknown(),
    )
    return recipe.adapt(golden)


class _Arrays:
    """The arrays of a file; asking for one that is not there is the user's error."""

    def __init__(self, path: Path, arrays: dict[str, Tensor]) -> None:
        self.path, self.arrays = path, arrays

    def need(self, name: str) -> Tensor:
        if name not in self.arrays:
            raise UserError(f"{self.path} lacks {name}, which golden files of its kind have")
        return self.arrays[name]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return everything whose name starts with ``prefix``, by the rest of the name."""
        return {name.removeprefix(prefix): x for name, x in self.arrays.items() if name.startswith(prefix)}

    def unknown(self) -> tuple[str, ...]:
        known = ("param/", "grad/", "init/", "in/", "out/", "loss/", "gen/", "buf/")
        return tuple(sorted(name for name in self.arrays if not name.startswith(known)))


def _settings(sidecar: Path, description: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a golden that its description tells."""
    loss = description.get("loss")
    if loss not in FORMULAS:
        raise UserError(f"{sidecar}: loss must be one of {', '.join(FORMULAS)}, not {loss!r}")
    smoothing = float(description["label_smoothing"]) if loss.startswith("fairseq") else 0.0
    return {"pad": description.get("pad"), "loss": loss, "label_smoothing": smoothing}


def _logits(arrays: _Arrays, inputs: dict[str, Tensor], outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return logits by mode; all arrays of a model that has its inputs are needed."""
    if "src_tokens" in inputs and "prev_output_tokens" in inputs:
        arrays.need("in/src_lengths")
        arrays.need("out/encoder_out")
    if "prev_output_tokens" not in inputs:
        if not {"src_tokens", "src_vectors"} & inputs.keys():
            raise UserError(f"{arrays.path} has no layout of golden files: it holds nothing that a model was given")
        arrays.need("in/loss_weight")
        return {}
    for name in ("in/target", "loss/train"):
        arrays.need(name)
    evaluation = arrays.need("out/logits")
    modes = {"evaluation": evaluation, "training": outputs.get("logits_training", evaluation)}
    return modes | ({"incremental": outputs["logits_incremental"]} if "logits_incremental" in outputs else {})


def _by_our_names(path: Path, description: dict[str, Any], recipe: GoldenRecipe, arrays: _Arrays) -> dict[str, Any]:
    """Return parameters, gradients and initial values."""
    unused = re.compile(recipe.unused)
    authors = recipe.authors_of(description)
    parameters, gradients, initial = (arrays.under(prefix) for prefix in ("param/", "grad/", "init/"))

    def ours(values: Values) -> Values:
        return _joined(translate({name: value for name, value in values.items() if not unused.match(name)}, authors))

    try:
        return {
            "parameters": ours(parameters),
            "gradients": ours(gradients),
            "scales": ours({name: torch.full_like(x, x.abs().max().item()) for name, x in gradients.items()}),
            "unused_gradients": {name: value for name, value in gradients.items() if unused.match(name)},
            "initial": ours(initial),
        }
    except (ValueError, IndexError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{path}: its parameters do not have the names and shapes of {authors.repository or 'its repository'}"
            f" ({str(error).splitlines()[0]})"
        ) from error


def _joined(values: Values) -> Values:
    """Join the first matrices of a gated FFN, ``fc1.gate`` and ``fc1.up``, to one."""
    joined = {}
    for name, value in values.items():
        if ".fc1.gate." in name:
            value = torch.cat([value, values[name.replace(".gate.", ".up.")]])
        if ".fc1.up." not in name:
            joined[name.replace(".fc1.gate.", ".fc1.")] = value
    return joined


def _generations(sidecar: Path, description: dict[str, Any], arrays: _Arrays) -> dict[str, Generation]:
    """Return generations by name: ``beam4``, ``greedy``."""
    names = [m[1] for m in map(re.compile(r"gen/(\w+)/tokens").fullmatch, arrays.arrays) if m]
    src_tokens, prefix = (arrays.arrays.get(f"gen/{key}") for key in ("src_tokens", "prefix"))
    generations = {}
    for name in names:
        parts = {part: arrays.need(f"gen/{name}/{part}") for part in ("tokens", "scores", "positional_scores")}
        max_len, min_len = (whole_number(sidecar, description, "generation", key) for key in ("max_len", "min_len"))
        lenpen = float(description["generation"]["lenpen"])
        generations[name] = Generation(src_tokens, prefix, **parts, max_len=max_len, min_len=min_len, lenpen=lenpen)
    return generations


def whole_number(path: Path, description: dict[str, Any], *keys: str) -> int:
    """Return a positive whole number of a description, by the names of nested entries.

    Raises:
        UserError: it is not there, or is something else.
    """
    value: Any = description
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise UserError(f"{path} lacks {'.'.join(keys)}, which files of its kind have")
        value = value[key]
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UserError(f"{path}: {'.'.join(keys)} must be a positive whole number, not {value!r}")
    return int(text)

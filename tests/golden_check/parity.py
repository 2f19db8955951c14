"""How far the plugin is from what the authors' code computed, from activations to generated sentences."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_residuals.wirings.core.state_dict_names import fairseq_name
from tests.golden_check.archive import read_sidecar, variant_name
from tests.golden_check.fixtures import Generation, Golden, read_golden
from tests.golden_check.rebuild import build, load
from tests.golden_check.recipes import find_recipe, refuse_other_kinds
from tests.golden_check.recompute import recompute
from tests.golden_check.tolerances import FAIRSEQ, Tolerances


def score_errors(generation: Generation, model: Any) -> Iterator[float]:
    """Yield for each sentence the largest error of its hypotheses' scores; infinity if their tokens differ."""
    words = model.decoder.dictionary
    generator = SequenceGenerator(
        [model],
        words,
        beam_size=generation.tokens.size(1),
        max_len_a=0,
        max_len_b=generation.max_len,
        min_len=generation.min_len,
        len_penalty=generation.lenpen,
    )
    source = generation.prefix if generation.src_tokens is None else generation.src_tokens
    assert source is not None
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(words.pad()).sum(-1)}}
    sentences = generator.generate([model], sample, prefix_tokens=generation.prefix, bos_token=words.eos())
    for i, hypotheses in enumerate(sentences):
        lengths = [n for n in generation.tokens[i].ne(words.pad()).sum(-1).tolist() if n]
        if [h["tokens"].tolist() for h in hypotheses] != [
            generation.tokens[i, rank, :n].tolist() for rank, n in enumerate(lengths)
        ]:
            yield float("inf")
            continue
        by_score = (abs(float(h["score"]) - generation.scores[i, rank].item()) for rank, h in enumerate(hypotheses))
        by_position = (
            (h["positional_scores"] - generation.positional_scores[i, rank, :n]).abs().max().item()
            for rank, (h, n) in enumerate(zip(hypotheses, lengths, strict=True))
        )
        yield max(*by_score, *by_position)


Value = TypeVar("Value")


def moved(value: Value, device: torch.device) -> Value:
    """Return ``value`` with every tensor in it, also in dataclasses, dictionaries and lists, on ``device``."""
    found: Any = value
    if isinstance(value, Tensor):
        found = value.to(device)
    elif isinstance(value, dict):
        found = {key: moved(x, device) for key, x in value.items()}
    elif isinstance(value, list):
        found = [moved(x, device) for x in value]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = dataclasses.replace(
            value, **{f.name: moved(getattr(value, f.name), device) for f in dataclasses.fields(value)}
        )
    return found  # type: ignore[no-any-return]


ROUNDINGS = 10
"""Single precision does not keep the tolerances everywhere: where gradients are in the tens, some golden files are
further than that from the exact values of their own model. An error beyond its tolerance is therefore held against what
happens to the same quantity, computed in double precision, when every weight is moved by at most half a unit in its
last place: up to this many times that much is rounding. The files of tests/golden need 3.6 times; a norm's eps of 1e-6
for 1e-5 makes 36 times."""
SAMPLES = 8
CPU = torch.device("cpu")

Errors = dict[str, float]
Computed = TypeVar("Computed")


@dataclass
class Parity:
    """The errors of one golden file, each by name."""

    activations: Errors = field(default_factory=dict)
    logits: Errors = field(default_factory=dict)
    loss: Errors = field(default_factory=dict)
    gradients: Errors = field(default_factory=dict)
    scores: Errors = field(default_factory=dict)
    """Of the hypotheses of each sentence; infinite where tokens differ."""
    initial: Errors = field(default_factory=dict)
    """Of the parameters of a model that was just made."""
    not_compared: list[str] = field(default_factory=list)
    """What the file holds and nothing here computes."""
    rounding: Errors = field(default_factory=dict)
    """By kind and name, for errors beyond their tolerance: what :data:`ROUNDINGS` allows."""
    tolerances: Tolerances = FAIRSEQ
    single: set[str] = field(default_factory=set)
    """The gradients that are one number."""
    notes: list[str] = field(default_factory=list)
    """What else has to be said of the comparison."""

    def errors(self) -> Errors:
        """Return all of them, by kind and name."""
        return {f"{kind} {name}": e for kind in self.tolerances.limits for name, e in getattr(self, kind).items()}

    def limit(self, name: str) -> float:
        """Return the tolerance of an error, by its kind and name."""
        kind, _, what = name.partition(" ")
        single = kind == "gradients" and what in self.single and self.tolerances.single
        return single or self.tolerances.limits[kind]

    def beyond(self) -> Errors:
        """Return the errors that are not within the tolerance of their kind."""
        # written so that what is not a number fails
        return {name: e for name, e in self.errors().items() if not e <= self.limit(name)}

    def failures(self) -> Errors:
        """Return those errors that rounding does not explain."""
        return {name: e for name, e in self.beyond().items() if not e <= self.rounding.get(name, 0.0)}


def read(path: Path) -> Golden:
    """Read a golden file, with the recipe for its model.

    Raises:
        OtherKind: it is no golden file, by its name.
    """
    refuse_other_kinds(path)
    sidecar = read_sidecar(path)
    name = variant_name(path, sidecar)
    recipe = find_recipe(name)
    if recipe is None:
        raise LookupError(f"no wiring here computes {name}")
    return read_golden(path, sidecar, recipe)


def compare_file(path: Path, device: torch.device = CPU) -> tuple[str, Parity]:
    """Compare the plugin with a golden file.

    Returns:
        The wiring that it was compared with, and its errors.

    Raises:
        OtherKind: it is no golden file, by its name.
    """
    golden = read(path)
    return golden.wiring, compare_golden(golden, device)


def compare_golden(golden: Golden, device: torch.device = CPU) -> Parity:
    """Rebuild the model of ``golden`` and compare everything."""
    model = build(golden)
    initial = {fairseq_name(name): p.detach().clone() for name, p in model.named_parameters()}
    load(golden, model)
    parity = compare(golden, model, device)
    if golden.recipe.initial_values:
        parity.initial = {name: _largest(initial[name] - value) for name, value in golden.initial.items()}
    elif golden.initial:
        parity.notes.append("init/* not compared, for training does not start from these values")
    return parity


def compare(golden: Golden, model: nn.Module, device: torch.device = CPU) -> Parity:
    """Run ``model``, which has the golden's weights, on the golden's batch; leave it there, in evaluation mode."""
    golden, model = moved(golden, device), model.to(device)
    computed = recompute(golden, model)
    assert computed.gradients.keys() == golden.gradients.keys()
    for kind in ("activations", "logits", "gradients"):
        file, found = getattr(golden, kind), getattr(computed, kind)
        assert all(file[name].shape == found[name].shape for name in file.keys() & found.keys()), kind
    parity = measure(golden, computed)
    parity.gradients |= {name: _largest(value) for name, value in golden.unused_gradients.items()}
    parity.not_compared = sorted(golden.activations.keys() - computed.activations.keys()) + list(golden.unknown)
    if golden.recipe.tolerances.reason:
        parity.notes.append(f"tolerance {parity.limit('activations'):g}: {golden.recipe.tolerances.reason}")
    finite = all(logits.isfinite().all() for logits in computed.logits.values())
    for name, generation in golden.generations.items():
        # fairseq's generator does not end on what is not a number
        errors = score_errors(generation, model) if finite else [float("inf")] * len(generation.tokens)
        for i, error in enumerate(errors):
            parity.scores[f"{name}, sentence {i}"] = error
    if parity.beyond():
        allowed = rounding(model, partial(_recompute_compared, golden), measure)
        # a score is a mean of log-probabilities, and these are differences of logits
        allowed |= {f"scores {name}": allowed["logits evaluation"] for name in parity.scores}
        parity.rounding = {name: ROUNDINGS * allowed.get(name, 0.0) for name in parity.beyond()}
    return parity


def _recompute_compared(golden: Golden, model: nn.Module) -> Golden:
    """Recompute, without the activations that ``golden`` lacks."""
    computed = recompute(golden, model)
    return replace(computed, activations={k: x for k, x in computed.activations.items() if k in golden.activations})


def measure(golden: Golden, computed: Golden) -> Parity:
    """Return the errors of ``computed``, the same batch through some other model; generation is left out."""
    tolerances = golden.recipe.tolerances
    parity = Parity(tolerances=tolerances)
    for name in golden.activations.keys() & computed.activations.keys():
        expected, where = golden.activations[name], _compared(golden, name)
        where = where.expand_as(expected) if where.dim() == expected.dim() else where
        error = _largest((computed.activations[name] - expected)[where])
        # the cell of an LSTM starts at zero
        scale = (_largest(expected[where]) or 1.0) if "activations" in tolerances.relative else 1.0
        parity.activations[name] = error / scale
    for mode, expected in golden.logits.items():
        where = _compared(golden, "dec")
        scale = (_largest(expected[where]) or 1.0) if "logits" in tolerances.relative else 1.0
        parity.logits[mode] = _largest((computed.logits[mode] - expected)[where]) / scale
    for kind in golden.losses.keys() & computed.losses.keys():
        loss = golden.losses[kind]
        error = abs(computed.losses[kind] - loss)
        parity.loss[kind] = error / (abs(loss) or 1.0) if "loss" in tolerances.relative else error
    for name, gradient in computed.gradients.items():
        parity.gradients[name] = _gradient_error(golden, name, gradient)
    parity.single = {name for name, gradient in computed.gradients.items() if gradient.numel() == 1}
    return parity


def rounding(
    model: nn.Module, run: Callable[[nn.Module], Computed], measure: Callable[[Computed, Computed], Parity]
) -> Errors:
    """Return by kind and name the largest error of some models whose weights are rounded otherwise.

    Args:
        run: what is computed with a model.
        measure: the errors of the second, held against the first.
    """
    exact = copy.deepcopy(model).double()
    expected = run(exact)
    generator = torch.Generator().manual_seed(0)
    largest: Errors = {}
    for _ in range(SAMPLES):
        other = copy.deepcopy(exact)
        with torch.no_grad():
            for parameter in other.parameters():
                steps = 2 * torch.rand(parameter.shape, generator=generator, dtype=torch.double) - 1
                parameter.mul_(1 + 2**-24 * steps.to(parameter.device))
        for name, error in measure(expected, run(other)).errors().items():
            largest[name] = max(error, largest.get(name, 0.0))
    return largest


def _gradient_error(golden: Golden, name: str, gradient: Tensor) -> float:
    of_keys = name.endswith("k_proj.bias")
    if "gradients" not in golden.recipe.tolerances.relative:
        # the gradient of a bias of keys is zero but for rounding
        return _largest(gradient if of_keys else gradient - golden.gradients[name])
    scale = golden.scales[name]
    if of_keys:
        # without rotary positions it is a sum that cancels but for rounding
        scale = scale.maximum(golden.scales[name.replace("bias", "weight")].max())
    if gradient.numel() == 1 and golden.recipe.tolerances.single:
        # the terms of a sum that cancels are about as large as in other layers
        alike = [x for other, x in golden.scales.items() if _in_any_layer(other) == _in_any_layer(name)]
        scale = torch.stack(alike).max()
    return _largest((gradient - golden.gradients[name]) / scale.where(scale > 0, 1.0))


def _in_any_layer(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _compared(golden: Golden, name: str) -> Tensor:
    """Return where an activation is compared: not at padding. (B, T), or for attention scores (B, 1, T, S)."""
    of_encoder = name.startswith("enc")
    queries = golden.words("src" if of_encoder else "tgt")
    if not name.endswith("_scores"):
        return queries
    keys = golden.words("src" if of_encoder or "_cross_" in name else "tgt")
    return queries[:, None, :, None] & keys[:, None, None]


def _largest(values: Tensor) -> float:
    return values.abs().max().item()

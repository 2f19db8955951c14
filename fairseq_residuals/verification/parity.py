"""How far the plugin is from what the authors' code computed, from activations to generated sentences."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.verification.device import moved
from fairseq_residuals.verification.golden_file import PAD, Generation, Golden
from fairseq_residuals.verification.recompute import recompute

TOLERANCES = {"activations": 1e-6, "logits": 1e-5, "loss": 1e-6, "gradients": 3e-5, "scores": 1e-5}
"""What the authors' own code keeps from one version of PyTorch to another. Activations and loss: the largest
error as a part of the largest magnitude; the others: the largest error itself."""

EXPLANATION = """\
Activations and loss: as a part of the largest magnitude (tolerance {activations:g}, {loss:g}). Logits and
gradients: absolute (tolerance {logits:g}, {gradients:g}); for the biases of keys, whose gradient is zero but
for rounding, its magnitude. Generation agrees if every hypothesis has the same tokens and, within {scores:g},
the same scores.""".format(**TOLERANCES)

ROUNDINGS = 10
"""Single precision does not keep them everywhere: where gradients are in the tens, some golden files are further than
that from the exact values of their own model. An error beyond its tolerance is therefore held against what happens to
the same quantity, computed in double precision, when every weight is moved by at most half a unit in its last place:
up to this many times that much is rounding. The files of tests/golden need 3.6 times; a norm's eps of 1e-6 for 1e-5
makes 36 times."""
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
    """For the biases of keys, whose gradients are zero but for rounding: the largest magnitude."""
    scores: Errors = field(default_factory=dict)
    """Of the hypotheses of each sentence; infinite where tokens differ."""
    initial: Errors = field(default_factory=dict)
    """Of the parameters of a model that was just made."""
    not_compared: list[str] = field(default_factory=list)
    """What the file holds and nothing here computes."""
    rounding: Errors = field(default_factory=dict)
    """By kind and name, for errors beyond their tolerance: what :data:`ROUNDINGS` allows."""
    tolerances: Mapping[str, float] = field(default_factory=lambda: TOLERANCES)
    """By kind."""
    explanation: str = EXPLANATION
    """What the errors of each kind are, and the tolerances."""
    notes: list[str] = field(default_factory=list)
    """What else has to be said of the comparison."""

    def errors(self) -> Errors:
        """All of them, by kind and name."""
        return {f"{kind} {name}": e for kind in self.tolerances for name, e in getattr(self, kind).items()}

    def beyond(self) -> Errors:
        """The errors that are not within the tolerance of their kind."""
        # written so that what is not a number fails
        return {name: e for name, e in self.errors().items() if not e <= self.tolerances[name.split()[0]]}

    def failures(self) -> Errors:
        """Those of them that rounding does not explain."""
        return {name: e for name, e in self.beyond().items() if not e <= self.rounding.get(name, 0.0)}


def compare(golden: Golden, model: nn.Module, device: torch.device = CPU) -> Parity:
    """Runs ``model``, which has the golden's weights, on the golden's batch; leaves it there, in evaluation mode.

    Raises:
        UserError: the golden lacks the gradient of a parameter, or has one that the model lacks.
    """
    golden, model = moved(golden, device), model.to(device)
    computed = recompute(golden, model)
    different = sorted(computed.gradients.keys() ^ golden.gradients.keys())
    if different:
        verb = "lacks" if different[0] in computed.gradients else "holds, unlike its model,"
        raise UserError(f"{golden.path} {verb} the gradient of {different[0]}")
    parity = measure(golden, computed)
    parity.not_compared = [name for name in golden.activations if name not in computed.activations]
    for name, generation in golden.generations.items():
        for i, error in enumerate(_score_errors(generation, model)):
            parity.scores[f"{name}, sentence {i}"] = error
    if parity.beyond():
        found = rounding(model, partial(recompute, golden), measure)
        # a score is a mean of log-probabilities, and these are differences of logits
        found |= {f"scores {name}": found["logits evaluation"] for name in parity.scores}
        parity.rounding = {name: ROUNDINGS * found[name] for name in parity.beyond()}
    return parity


def measure(golden: Golden, computed: Golden) -> Parity:
    """The errors of ``computed``, which is the same batch through some other model; generation is left out."""
    parity = Parity()
    for name in golden.activations.keys() & computed.activations.keys():
        expected, where = golden.activations[name], _compared(golden, name)
        where = where.expand_as(expected) if where.dim() == expected.dim() else where
        error = _largest((computed.activations[name] - expected)[where])
        # the cell of an LSTM starts at zero
        parity.activations[name] = error / (_largest(expected[where]) or 1.0)
    for mode, expected in golden.logits.items():
        words = _compared(golden, "dec")
        parity.logits[mode] = _largest((computed.logits[mode] - expected)[words])
    for kind, loss in golden.losses.items():
        parity.loss[kind] = abs(computed.losses[kind] - loss) / abs(loss)
    for name, gradient in computed.gradients.items():
        expected = torch.zeros_like(gradient) if name.endswith("k_proj.bias") else golden.gradients[name]
        parity.gradients[name] = _largest(gradient - expected)
    return parity


def rounding(
    model: nn.Module, run: Callable[[nn.Module], Computed], measure: Callable[[Computed, Computed], Parity]
) -> Errors:
    """By kind and name, the largest error of some models whose weights are rounded otherwise.

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


def _compared(golden: Golden, name: str) -> Tensor:
    """Where an activation is compared: not at padding. (B, T), or for attention scores (B, 1, T, S)."""
    of_encoder = name.startswith("enc")
    queries = golden.src_tokens if of_encoder else golden.prev_output_tokens
    assert queries is not None
    if not name.endswith("_scores"):
        return queries.ne(PAD)
    keys = golden.src_tokens if of_encoder or "_cross_" in name else golden.prev_output_tokens
    assert keys is not None
    return queries.ne(PAD)[:, None, :, None] & keys.ne(PAD)[:, None, None]


def _score_errors(generation: Generation, model: Any) -> Iterator[float]:
    """For each sentence, the largest error of its hypotheses' scores; infinity if their tokens differ."""
    words = model.decoder.dictionary
    generator = SequenceGenerator(
        [model],
        words,
        beam_size=generation.beam,
        max_len_a=0,
        max_len_b=generation.max_len,
        min_len=generation.min_len,
        len_penalty=generation.lenpen,
    )
    source = generation.prefix if generation.src_tokens is None else generation.src_tokens
    assert source is not None
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(-1)}}
    generated = generator.generate([model], sample, prefix_tokens=generation.prefix, bos_token=words.eos())
    for hypotheses, expected in zip(generated, generation.sentences, strict=True):
        if [h["tokens"].tolist() for h in hypotheses] != [h.tokens.tolist() for h in expected]:
            yield float("inf")
            continue
        yield max(
            max(abs(float(h["score"]) - e.score), _largest(h["positional_scores"] - e.positional_scores))
            for h, e in zip(hypotheses, expected, strict=True)
        )


def _largest(values: Tensor) -> float:
    return values.abs().max().item()

"""How far the plugin is from what the authors' code computed, from activations to generated sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_residuals.checkpoints.golden import PAD, Generation, Golden
from fairseq_residuals.names import fairseq_name
from modern_fairseq.errors import UserError

TOLERANCES = {"activations": 1e-6, "logits": 1e-5, "loss": 1e-6, "gradients": 3e-5, "scores": 1e-5}
"""What the authors' own code keeps from one version of PyTorch to another. Activations and loss: the largest
error as a part of the largest magnitude; the others: the largest error itself."""

Errors = dict[str, float]


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
    not_compared: list[str] = field(default_factory=list)
    """What the file holds and nothing here computes."""

    def errors(self) -> Errors:
        """All of them, by kind and name."""
        return {f"{kind} {name}": e for kind in TOLERANCES for name, e in getattr(self, kind).items()}

    def failures(self) -> Errors:
        """The errors that are not within :data:`TOLERANCES`."""
        # written so that what is not a number fails
        return {name: e for name, e in self.errors().items() if not e <= TOLERANCES[name.split()[0]]}


def compare(golden: Golden, model: nn.Module) -> Parity:
    """Runs ``model``, which has the golden's weights, on the golden's batch; leaves it in evaluation mode.

    Raises:
        UserError: the golden lacks the gradient of a parameter, or has one that the model lacks.
    """
    parity = Parity()
    _compare_evaluation(golden, model.eval(), parity)
    _compare_training(golden, model.train(), parity)
    model.eval()
    for name, generation in golden.generations.items():
        for i, error in enumerate(_score_errors(generation, model)):
            parity.scores[f"{name}, sentence {i}"] = error
    return parity


def _compare_evaluation(golden: Golden, model: nn.Module, parity: Parity) -> None:
    with torch.no_grad(), recorded(model) as seen:
        logits = _forward(golden, model, seen)
    for name, expected in golden.activations.items():
        tokens = golden.src_tokens if name.startswith("enc") else golden.prev_output_tokens
        if name in seen and tokens is not None:
            parity.activations[name] = relative_error(seen[name], expected, tokens.ne(PAD))
        else:
            parity.not_compared.append(name)
    _compare_logits("evaluation", golden, logits, parity)
    kinds = {"eval": golden.smoothing} | {kind: kind for kind in ("fairseq-0.9", "fairseq-0.12", "nll")}
    for name in kinds.keys() & golden.losses.keys():
        _compare_loss(name, golden, loss_of(logits, golden.target, kinds[name], golden.epsilon), parity)


def _compare_training(golden: Golden, model: nn.Module, parity: Parity) -> None:
    model.zero_grad()
    if golden.src_tokens is None:
        logits, _ = model(golden.prev_output_tokens)
    else:
        logits, _ = model(golden.src_tokens, golden.src_lengths, golden.prev_output_tokens)
    loss = loss_of(logits, golden.target, golden.smoothing, golden.epsilon)
    loss.backward()
    _compare_logits("training", golden, logits.detach(), parity)
    _compare_loss("train", golden, loss, parity)
    parity.gradients.update(_gradient_errors(golden, model))


def _compare_logits(mode: str, golden: Golden, logits: Tensor, parity: Parity) -> None:
    words = golden.prev_output_tokens.ne(PAD)
    parity.logits[mode] = _largest(logits[words] - golden.logits[words])


def _compare_loss(name: str, golden: Golden, loss: Tensor, parity: Parity) -> None:
    parity.loss[name] = abs(loss.item() - golden.losses[name]) / abs(golden.losses[name])


@contextmanager
def recorded(model: Any) -> Iterator[dict[str, Tensor]]:
    """Collects, while ``model`` runs, what (sub-)layers take and give, (B, T, C), as goldens name it."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, value: Tensor) -> None:
        seen[name] = value.transpose(0, 1)

    def keep_layer(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        keep(f"{name}_in", inputs[0]["x"])
        keep(name, output[0]["x"])

    def keep_sublayer(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        keep(name, output[0] if isinstance(output, tuple) else output)

    handles = []
    for side in ("enc", "dec"):
        stack = getattr(getattr(model, f"{side}oder", None), "layers", ())
        for i in range(len(stack)):
            layer = stack[i]
            handles.append(layer.register_forward_hook(partial(keep_layer, f"{side}_layer{i}")))
            sublayers = {"self_attn": layer.self_attn, "cross_attn": layer.encoder_attn, "ffn": layer.fc2}
            for kind, module in sublayers.items():
                if module is not None:
                    handles.append(module.register_forward_hook(partial(keep_sublayer, f"{side}{i}_{kind}")))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def relative_error(value: Tensor, expected: Tensor, mask: Tensor) -> float:
    """Largest error as a part of the largest magnitude, where ``mask`` (B, T) is set in (B, T, C)."""
    return _largest(value[mask] - expected[mask]) / _largest(expected[mask])


def loss_of(logits: Tensor, target: Tensor, kind: str, epsilon: float) -> Tensor:
    """The loss summed over target tokens.

    Args:
        logits: (B, T, V)
        target: (B, T)
        kind: nll; fairseq-0.9, which spreads epsilon over all V words; fairseq-0.12, over the V - 1 others.
    """
    log_probabilities = torch.log_softmax(logits[target.ne(PAD)], dim=-1)
    nll = -log_probabilities.gather(-1, target[target.ne(PAD)].unsqueeze(-1)).sum()
    if kind == "nll":
        return nll
    words = logits.shape[-1] - (kind == "fairseq-0.12")
    share = epsilon / words
    kept = 1 - epsilon - (share if kind == "fairseq-0.12" else 0)
    return kept * nll - share * log_probabilities.sum()


def _forward(golden: Golden, model: Any, seen: dict[str, Tensor]) -> Tensor:
    """Logits (B, T, V); adds what lies outside of the layers to ``seen``."""
    encoder_out = None
    if golden.src_tokens is not None:
        encoder_out = model.encoder(golden.src_tokens, golden.src_lengths)
        seen["encoder_out"] = encoder_out["encoder_out"][0].transpose(0, 1)
        seen["enc_embed"] = seen["enc_layer0_in"]
    features, _ = model.decoder(golden.prev_output_tokens, encoder_out=encoder_out, features_only=True)
    seen["decoder_features"] = features
    seen["dec_embed"] = seen["dec_layer0_in"]
    return model.decoder.output_layer(features)


def _gradient_errors(golden: Golden, model: nn.Module) -> Errors:
    ours = {fairseq_name(name): p.grad for name, p in model.named_parameters() if p.grad is not None}
    different = sorted(ours.keys() ^ golden.gradients.keys())
    if different:
        verb = "lacks" if different[0] in ours else "holds, unlike its model,"
        raise UserError(f"{golden.path} {verb} the gradient of {different[0]}")
    return {
        name: _largest(gradient if name.endswith("k_proj.bias") else gradient - golden.gradients[name])
        for name, gradient in ours.items()
    }


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

"""Everything that a golden file holds, recomputed by a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.models.state_dict_names import fairseq_name
from fairseq_residuals.verification.golden_file import PAD, Golden


def recompute(golden: Golden, model: nn.Module) -> Golden:
    """What the golden file would hold if ``model`` had made it, but for what is generated; the model is left in
    evaluation mode."""
    activations, logits, losses = _evaluate(golden, model.eval())
    training = _train(golden, model.train())
    gradients = {fairseq_name(name): p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.eval()
    if training is not None and golden.target is not None:
        logits["training"] = training
        losses["train"] = loss_of(training, golden.target, golden.smoothing, golden.epsilon).item()
    return replace(golden, activations=activations, logits=logits, losses=losses, gradients=gradients)


def _evaluate(golden: Golden, model: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, float]]:
    """Activations, logits by mode, losses by kind."""
    tokens = golden.prev_output_tokens
    encoder_out = None
    with torch.no_grad(), recorded(model) as seen:
        if golden.src_tokens is not None:
            encoder_out = model.encoder(golden.src_tokens, golden.src_lengths)
            seen["encoder_out"] = encoder_out["encoder_out"][0].transpose(0, 1)
        if tokens is None or golden.target is None:
            return dict(seen), {}, {}
        seen["decoder_features"], _ = model.decoder(tokens, encoder_out=encoder_out, features_only=True)
    logits = {"evaluation": model.decoder.output_layer(seen["decoder_features"]).detach()}
    if "incremental" in golden.logits:
        logits["incremental"] = _decode(model, tokens, encoder_out)
    kinds = {"eval": golden.smoothing} | {kind: kind for kind in ("fairseq-0.9", "fairseq-0.12", "nll")}
    losses = {
        kind: loss_of(logits["evaluation"], golden.target, formula, golden.epsilon).item()
        for kind, formula in kinds.items()
    }
    return dict(seen), logits, losses


@torch.no_grad()
def _decode(model: Any, tokens: Tensor, encoder_out: Any) -> Tensor:
    """Logits (B, T, V), one position after the other."""
    state: dict[str, Any] = {}
    lengths = range(1, tokens.size(1) + 1)
    steps = [model.decoder(tokens[:, :n], encoder_out=encoder_out, incremental_state=state)[0] for n in lengths]
    return torch.cat(steps, 1)


def _train(golden: Golden, model: Any) -> Tensor | None:
    """Computes the gradients; logits (B, T, V), None from an encoder alone."""
    model.zero_grad()
    if golden.target is None:
        assert golden.output_weight is not None
        output = model(golden.src_tokens, golden.src_lengths)["encoder_out"][0].transpose(0, 1)
        (output * golden.output_weight).sum().backward()
        return None
    source = () if golden.src_tokens is None else (golden.src_tokens, golden.src_lengths)
    logits, _ = model(*source, golden.prev_output_tokens)
    loss_of(logits, golden.target, golden.smoothing, golden.epsilon).backward()
    return logits.detach()


@contextmanager
def recorded(model: Any) -> Iterator[dict[str, Tensor]]:
    """Collects, while ``model`` runs, what (sub-)layers take and give, as goldens name it: (B, T, C), and attention
    scores as they are."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, value: Tensor) -> None:
        seen[name] = value.transpose(0, 1) if value.dim() == 3 else value

    def keep_layer(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        places = [(f"{name}_in", inputs[0]), (name, output[0])]
        if name.endswith("layer0"):
            places.append((f"{name[:3]}_embed", inputs[0]))
        for place, stream in places:
            for key, value in stream.items():
                keep(place if key == "x" else f"{place}_{key}", value)

    def keep_sublayer(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        keep(name, output[0] if isinstance(output, tuple) else output)

    handles = []
    for side in ("enc", "dec"):
        stack = getattr(getattr(model, f"{side}oder", None), "layers", ())
        for i in range(len(stack)):
            layer = stack[i]
            handles.append(layer.register_forward_hook(partial(keep_layer, f"{side}_layer{i}")))
            attentions = {"self_attn": layer.self_attn, "cross_attn": layer.encoder_attn}
            # a variant that steps into attention calls its parts, not the module
            sublayers = [(kind, part) for kind, a in attentions.items() if a is not None for part in (a.out_proj, a)]
            sublayers += [("ffn", layer.fc2)] if "ffn" in layer.kinds else []
            for kind, module in sublayers:
                handles.append(module.register_forward_hook(partial(keep_sublayer, f"{side}{i}_{kind}")))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


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

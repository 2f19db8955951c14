"""Everything that a golden file holds, but for what is generated, recomputed by a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.layer import CONNECTIONS
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name
from tests.golden_check.fixtures import FORMULAS, Golden
from tests.golden_check.hosts.host import HostModel
from tests.golden_check.rebuild import batch_first, parts_of_stream


def recompute(golden: Golden, model: nn.Module) -> Golden:
    """Return what the golden file would hold if ``model`` had made it; the model is left in evaluation mode."""
    dtype = next(model.parameters()).dtype
    inputs = {name: x.to(dtype) if x.is_floating_point() else x for name, x in golden.inputs.items()}
    golden = replace(golden, inputs=inputs)
    with torch.no_grad(), recorded(model.eval(), golden.recipe.layer_outputs) as seen:
        activations = seen | _outputs(golden, model)
    logits = {"evaluation": activations.pop("logits")} if "logits" in activations else {}
    losses = _losses(golden, logits["evaluation"]) if logits else {}
    if "incremental" in golden.logits:
        logits["incremental"] = _decode(golden, model)

    model.train().zero_grad()
    outputs = _outputs(golden, model)
    loss = _training_loss(golden, outputs)
    loss.backward()
    model.eval()
    if "logits" in outputs:
        logits["training"] = outputs["logits"].detach()
    gradients = {fairseq_name(name): p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    losses |= {"train": loss.item()}
    return replace(golden, activations=activations, logits=logits, losses=losses, gradients=gradients)


def _outputs(golden: Golden, model: Any) -> dict[str, Tensor]:
    """Run the model: what leaves its stacks (B, S or T, C), and its logits (B, T, V)."""
    if isinstance(model, HostModel):
        outputs: dict[str, Tensor] = model(golden.inputs)
        return outputs
    encoder_out, outputs = _encode(golden, model), {}
    if encoder_out is not None:
        outputs["encoder_out"] = encoder_out["encoder_out"][0].transpose(0, 1)
    if "prev_output_tokens" in golden.inputs:
        tokens = golden.inputs["prev_output_tokens"]
        features, _ = model.decoder(tokens, encoder_out=encoder_out, features_only=True)
        outputs |= {"decoder_features": features, "logits": model.decoder.output_layer(features)}
    return outputs


def _encode(golden: Golden, model: Any) -> Any:
    """Return what fairseq's encoder returns; None of a language model."""
    if "src_tokens" not in golden.inputs:
        return None
    lengths = golden.inputs.get("src_lengths", golden.words("src").sum(-1))
    return model.encoder(golden.inputs["src_tokens"], lengths)


@torch.no_grad()
def _decode(golden: Golden, model: Any) -> Tensor:
    """Return logits (B, T, V), one position after the other."""
    tokens, encoder_out = golden.inputs["prev_output_tokens"], _encode(golden, model)
    state: dict[str, Any] = {}
    lengths = range(1, tokens.size(1) + 1)
    steps = [model.decoder(tokens[:, :n], encoder_out=encoder_out, incremental_state=state)[0] for n in lengths]
    return torch.cat(steps, 1)


def _losses(golden: Golden, logits: Tensor) -> dict[str, float]:
    kinds = {"eval": golden.loss} | {kind: kind for kind in FORMULAS if kind != "weighted"}
    target = golden.inputs["target"]
    return {
        kind: loss_of(logits, target, formula, golden.label_smoothing, golden.pad).item()
        for kind, formula in kinds.items()
    }


def _training_loss(golden: Golden, outputs: dict[str, Tensor]) -> Tensor:
    if golden.loss != "weighted":
        target = golden.inputs["target"]
        return loss_of(outputs["logits"], target, golden.loss, golden.label_smoothing, golden.pad)
    last = outputs.get("decoder_features", outputs.get("encoder_out"))
    assert last is not None
    return (last * golden.inputs["loss_weight"]).sum()


@contextmanager
def recorded(model: nn.Module, layer_outputs: Any = parts_of_stream) -> Iterator[dict[str, Tensor]]:
    """Collect, while ``model`` runs, what its layers and sub-layers take and give, as goldens name it.

    Args:
        layer_outputs: what is collected of a stream, by the ending of its name.
    """
    seen: dict[str, Tensor] = {}

    def keep_layer(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        places = [(f"{name}_in", inputs[0]), (name, output[0])]
        if name.endswith("layer0"):
            places.append((f"{name[:3]}_embed", inputs[0]))
        for place, stream in places:
            seen.update({f"{place}{ending}": value for ending, value in layer_outputs(stream).items()})

    def keep_output(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        seen[name] = batch_first(output[0] if isinstance(output, tuple) else output)

    def keep_norm(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        # a norm of several streams (T, B, streams, C), too
        seen[f"{name}_in"], seen[f"{name}_norm"] = (x.transpose(0, 1) for x in (inputs[0], output))

    def keep_evaluation(name: str, ending: str, module: nn.Module, inputs: Any, output: Any) -> None:
        j = sum(bool(re.fullmatch(rf"{name}_eval\d+_{ending}", key)) for key in seen)
        seen[f"{name}_eval{j}_{ending}"] = batch_first((inputs if ending == "in" else output)[0]["x"])

    handles = []
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        side = stack.shape.stack[:3]
        for i in range(len(stack)):
            layer: Any = stack[i]
            handles.append(layer.register_forward_hook(partial(keep_layer, f"{side}_layer{i}")))
            for kind, ending in ((layer.kinds[0], "in"), (layer.kinds[-1], "out")):
                hook = partial(keep_evaluation, f"{side}_layer{i}", ending)
                handles.append(getattr(layer, CONNECTIONS[kind]).register_forward_hook(hook))
            attentions = {"self_attn": layer.self_attn, "cross_attn": layer.encoder_attn}
            # a variant that steps into attention calls its parts, not the module
            sublayers = [(kind, part) for kind, a in attentions.items() if a is not None for part in (a.out_proj, a)]
            sublayers += [("ffn", layer.fc2)] if "ffn" in layer.kinds else []
            for kind, module in sublayers:
                handles.append(module.register_forward_hook(partial(keep_output, f"{side}{i}_{kind}")))
            for j, kind in enumerate(layer.kinds):
                norm = getattr(getattr(layer, CONNECTIONS[kind]), "norm", None)
                if norm is not None:
                    name = f"{side}_sublayer{i * len(layer.kinds) + j}"
                    handles.append(norm.register_forward_hook(partial(keep_norm, name)))
        if (norm := getattr(stack.wiring, "norm", None)) is not None:
            handles.append(norm.register_forward_hook(partial(keep_norm, f"{side}_top")))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def loss_of(logits: Tensor, target: Tensor, formula: str, epsilon: float, pad: int | None) -> Tensor:
    """Return the loss summed over target tokens.

    Args:
        logits: (B, T, V)
        target: (B, T)
        formula: nll; fairseq-0.9, which spreads epsilon over all V words; fairseq-0.12, over the V - 1 others.
        pad: the word in ``target`` that is left out.
    """
    words = torch.ones_like(target, dtype=torch.bool) if pad is None else target.ne(pad)
    log_probabilities = torch.log_softmax(logits[words], dim=-1)
    nll = -log_probabilities.gather(-1, target[words].unsqueeze(-1)).sum()
    if formula == "nll":
        return nll
    others = logits.shape[-1] - (formula == "fairseq-0.12")
    share = epsilon / others
    own = 1 - epsilon - (share if formula == "fairseq-0.12" else 0)
    return own * nll - share * log_probabilities.sum()

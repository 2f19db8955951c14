"""What a layer costs: parameters, and activations that are kept for the backward pass."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.analysis.trace import run_below
from fairseq_residuals.core.stack import Stack


def parameters_per_layer(stack: Stack) -> list[int]:
    """Return numbers; parameters that layers share are the lowest one's."""
    seen: set[int] = set()
    found = []
    for i in range(len(stack)):
        own = {id(p): p.numel() for p in stack[i].parameters() if id(p) not in seen}
        seen |= own.keys()
        found.append(sum(own.values()))
    return found


def parameters_of_the_whole(stack: Stack) -> int:
    """Return how many parameters span the stack: a top norm, weights over depth."""
    in_layers = {id(p) for layer in stack.children() if layer is not stack.wiring for p in layer.parameters()}
    return sum(p.numel() for p in stack.wiring.parameters() if id(p) not in in_layers)


def activations_per_layer(stack: Stack, sentences: int, tokens: int, device: str = "cpu") -> list[int]:
    """Return bytes that autograd keeps for each layer, counted while it runs in training mode and single precision.

    A tensor that several layers keep (a history along depth) is the lowest one's; what the encoder gives is nobody's.

    Args:
        stack: of a model on the device ``meta``; each layer gets storage only while it runs.
    """
    stream, context = run_below(stack, 0, sentences, tokens)
    context = replace(
        context, memory=_real(context.memory, device), self_attn_mask=_real(context.self_attn_mask, device)
    )
    wiring = _copy(stack.wiring, device)
    with torch.enable_grad():
        x = torch.zeros(stream["x"].shape, device=device, requires_grad=True)
        stream = wiring.open(x)
        kept_below: set[int] = set()
        found = []
        for i in range(len(stack)):
            layer = _copy(stack[i], device)
            # a copy of a layer by itself evaluates by a copy of the wiring that has no storage
            layer.evaluate = wiring.at(i)[0].evaluate
            counter = _Counter([*layer.parameters(), *wiring.parameters(), context.memory], kept_below)
            with torch.autograd.graph.saved_tensors_hooks(counter.keep, lambda tensor: tensor):
                stream, _ = layer(stream, context)
                stream = wiring.after_layer(i, stream)
            found.append(sum(counter.sizes.values()))
            # without the graph below them, so that its tensors are freed
            kept = kept_below | counter.sizes.keys()
            kept_below = {_storage(value) for value in stream.values()} & kept
            stream = {key: value.detach().requires_grad_() for key, value in stream.items()}
    return found


class _Counter:
    """Bytes of the storages that autograd keeps, each once."""

    def __init__(self, owned: list[Tensor | None], kept_below: set[int]) -> None:
        self.not_counted = {_storage(t) for t in owned if t is not None} | kept_below
        self.sizes: dict[int, int] = {}

    def keep(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self.not_counted:
            self.sizes[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _real(tensor: Tensor | None, device: str) -> Tensor | None:
    return None if tensor is None else torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)


def _copy(module: nn.Module, device: str) -> Any:
    made = copy.deepcopy(module).to_empty(device=device).train()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    return made

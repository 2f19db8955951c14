"""Norms of the gradients of each layer of each stack."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.stack import Stack


def gradient_norms(model: nn.Module) -> dict[str, Tensor]:
    """Return, by name, the norm of the gradients as they are stored: a number in at least fp32, on its device."""
    norms = {}
    for path, stack in named_stacks(model):
        for name, part in stack.named_children():
            parameters = list(part.parameters())
            if parameters:
                at_least_single = torch.promote_types(parameters[0].dtype, torch.float32)
                zero = parameters[0].new_zeros((), dtype=at_least_single)  # layer dropout may leave no gradient at all
                each = [torch.linalg.vector_norm(p.grad, dtype=zero.dtype) for p in parameters if p.grad is not None]
                norms[f"gnorm/{path}.{name}"] = torch.stack([zero, *each]).norm()
    return norms


def named_stacks(model: nn.Module) -> Iterator[tuple[str, Stack]]:
    """Return the wired stacks of a model with their names in it."""
    return ((path, module) for path, module in model.named_modules() if isinstance(module, Stack))

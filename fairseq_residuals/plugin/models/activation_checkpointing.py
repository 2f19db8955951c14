"""``--checkpoint-activations``: each layer is computed once more in the backward pass, and keeps its input alone.

fairseq's own wrapper loses gradients through nested tensors, and a stream is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from fairseq_residuals.wirings.core.stack import Run


@dataclass(frozen=True)
class RecomputeActivations:
    """A wrapper of layers (:attr:`~fairseq_residuals.wirings.core.stack.Stack.wrappers`)."""

    def __call__(self, run: Run) -> Run:
        """Wrap what runs a layer; without gradients there is nothing to keep."""
        return partial(checkpoint, run, use_reentrant=False) if torch.is_grad_enabled() else run

"""The search for the module that made a NaN, with which fairseq ends a training whose loss exploded."""

import types
from typing import Any

import torch

from modern_fairseq.proxies import replaces


def backward_hooks_on_leaves(module: types.ModuleType) -> None:
    """Register hooks on the backward pass of modules without children only.

    nan_detector.py:60 hooks all of them, and PyTorch then looks for a tensor in what each returns. Among the values of
    the dictionary that a Transformer's encoder returns there is none: training ended in StopIteration, without the
    name of the module and without the reason. What a module makes, its leaves make.
    Can go when fairseq > 0.12.2 registers full backward hooks.
    """

    @replaces(module.NanDetector, "add_hooks")
    def add_hooks(original: Any, self: Any, hooked: Any) -> None:
        wanted = self.backward
        self.backward = wanted and not any(True for _ in hooked.children())
        original(self, hooked)
        self.backward = wanted


def look_without_gradients(module: types.ModuleType) -> None:
    """Let the search take the extremes of an input without a graph (nan_detector.py:84).

    Under activation checkpointing the layer that it looks into runs a second time, when it no longer looks: another
    number of tensors was then kept, and training ended in PyTorch's CheckpointError instead of the reason.
    Can go when fairseq > 0.12.2 takes them under ``no_grad``.
    """
    module.NanDetector.fhook_fn = torch.no_grad()(module.NanDetector.fhook_fn)  # type: ignore[attr-defined]

"""The one place that attaches this package to a model; without the package, a model runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fairseq_residuals.performance import compile_layers, cpu, relu_in_place


def attach(model: nn.Module, setting: Callable[[str], Any]) -> None:
    """Attach what makes a wired model faster.

    Args:
        model: fairseq's, just built.
        setting: the value of a flag, such as ``fast_on_cpu``; None where it was not given.
    """
    relu_in_place.attach(model)
    cpu.attach(model, fast=bool(setting("fast_on_cpu")), keep_memory=bool(setting("keep_freed_memory")))
    if setting("compile_stack"):
        compile_layers.attach(model)

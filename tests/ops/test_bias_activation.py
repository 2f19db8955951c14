"""Bias, activation and dropout in one kernel, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq.utils import get_activation_fn
from kernel_cases import DEVICE, assert_kernel_near, draw, needs_triton

from fairseq_residuals.ops.bias_activation import bias_activation, reference
from fairseq_residuals.ops.seeded_dropout import NOTHING_DROPPED, Dropout

KINDS = ("relu", "gelu", "gelu_accurate")
DROPPED = Dropout(0.3, torch.tensor([123456789123], device=DEVICE))


@needs_triton
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dropout", (NOTHING_DROPPED, DROPPED), ids=("all stays", "0.3 dropped"))
def test_against_reference(kind: Any, dropout: Dropout) -> None:
    def of(op: Callable[..., Any]) -> Callable[..., Any]:
        return lambda h, bias: op(h, bias, kind, dropout)

    for dtype, error in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        inputs = [draw(2, 3, 13, seed=1, dtype=dtype), draw(13, seed=2, dtype=dtype)]
        assert_kernel_near(of(bias_activation), of(reference), inputs, error)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_fairseqs_activations(kind: Any) -> None:
    h, bias = draw(50, 4, seed=1), draw(4, seed=2)
    torch.testing.assert_close(reference(h, bias, kind), get_activation_fn(kind)(h + bias), rtol=1e-6, atol=1e-6)

"""Hooks of a user on what a layer holds see what stock fairseq shows them."""

from __future__ import annotations

from typing import Any

import torch
from tiny import batch, build, build_stock, logits
from torch import Tensor


def test_on_the_first_matrix_of_the_ffn() -> None:
    """Whose output is otherwise changed in place."""
    seen: list[Any] = []
    for model in (build_stock("translation", normalize_before=False), build("translation", "post_ln")):
        kept: list[Tensor] = []
        gradients: list[Tensor] = []
        fc1: Any = model.get_submodule("encoder.layers.0.fc1")
        fc1.register_forward_hook(lambda module, args, output, kept=kept: kept.append(output))
        fc1.register_full_backward_hook(lambda module, given, of_output, out=gradients: out.append(of_output[0]))
        logits(model, "translation", batch("translation")).square().sum().backward()
        assert kept[0].min() < 0
        seen.append((kept[0].flatten(0, -2), gradients[0].flatten(0, -2)))
    torch.testing.assert_close(*seen, rtol=1e-5, atol=1e-5)

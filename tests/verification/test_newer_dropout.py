"""On which side of a branch's last norm its dropout is."""

from __future__ import annotations

import pytest
import torch
from wired_sublayers import wired


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "args", "zeros"),
    [("peri_ln", "", True), ("peri_ln", "dropout=before_norm", False), ("post_sublayer_norm", "", True)],
)
def test_on_which_side_of_the_norm_dropout_is(name: str, args: str, zeros: bool) -> None:
    """After it, half of what is added to the stream is 0; before it, a norm with a bias leaves hardly a channel so."""
    added: list[float] = []
    for w in wired(name, args):
        w.stack.train()
        for i in range(3):
            w.stack[i].dropout_module.p = 0.5
        for connection, _ in w.sublayers():
            connection.register_forward_hook(
                lambda _, inputs, out: added.append((out[0]["x"] - inputs[0]["x"]).eq(0).double().mean().item())
            )
        w.output()
    assert len(added) == 3 * (2 + 3)
    assert all((0.3 < part < 0.7) if zeros else part < 0.01 for part in added)

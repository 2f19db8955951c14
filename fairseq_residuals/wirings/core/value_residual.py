"""Value residual: the option ``value_residual``, common to all variants.

::

    layer 1:  v_1 ─────────────────┬──────────────► attention
                                   │ · λ1
    layer l:  v_l ─► · λ2 ─────────+──────────────► attention

Zhou et al. 2024, "Value Residual Learning" (ResFormer): the values v of a layer's self-attention, projected and with
their bias, become λ1 v_1 + λ2 v_l, where v_1 are those of the first layer; who attends to whom stays as it is.

=============  =======================================================================================================
``none``       no mixing
``identity``   λ1 = λ2 = 0.5, the form of the authors' code
``constant``   λ1 = 2, λ2 = 1
``learnable``  two scalars per layer, which start at 0.5
``sparse``     λ1 = 5, λ2 = 1 in the last third of the layers, rounded up (layers 6 to 8 of the authors' 8); none below
=============  =======================================================================================================

λ1 = 1, λ2 = 0 is their SVFormer, whose layers above the first have no values of their own. Checked against
Zcchill/Value-Residual-Learning@95652f6 (``modeling_llama_resformer.py``, ``modeling_llama_svformer.py``), which has
``identity`` and SVFormer; the other three follow the paper as others report it, and that λ2 is 1 in ``sparse`` is our
reading.

Published for decoders alone. Our choices: encoder and decoder have a chain each, cross-attention has none. In a list
of variants each segment has a chain of its own. If layer dropout skips the first layer, v_1 is of the first that runs.
Values are mixed before they enter the decoding cache, so that a step needs nothing of the steps before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

Mixing = Literal["none", "identity", "constant", "learnable", "sparse"]
WEIGHTS: dict[Mixing, tuple[float, float]] = {
    "identity": (0.5, 0.5),
    "constant": (2.0, 1.0),
    "learnable": (0.5, 0.5),
    "sparse": (5.0, 1.0),
}
"""λ1, λ2."""


def value_equations(mixing: Mixing) -> tuple[str, ...]:
    """Return what the option adds to the equations of a wiring."""
    if mixing == "none":
        return ()
    first, own = (f"{weight:g}" for weight in WEIGHTS[mixing])
    if mixing == "learnable":
        first, own = "first_weight", "own_weight"
    above = "l > 1, l > L - ceil(L / 3)" if mixing == "sparse" else "l > 1"
    return "SA, l = 1: F with v_1 = v", f"SA, {above}: F with v = {first} v_1 + {own} v"


class ValueResidual(nn.Module):
    """Mix the values of one layer's self-attention. Stream: "first_value" (T, B, C), what the first layer projected."""

    def __init__(self, mixing: Mixing, layer: int, depth: int) -> None:
        """Make what one layer needs to mix its values with those of the first.

        Args:
            mixing: any but ``none``.
            layer: from 0, of ``depth``.
        """
        super().__init__()
        self.mixes = layer > 0 and (mixing != "sparse" or layer >= depth - -(-depth // 3))
        learned = mixing == "learnable" and self.mixes
        self.first_weight, self.own_weight = (
            nn.Parameter(torch.tensor(weight)) if learned else weight for weight in WEIGHTS[mixing]
        )

    def edits(self, s: dict[str, Tensor], kept: dict[str, Tensor]) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return what :meth:`Connection.attend` is to edit: nothing where values stay and are those of no first layer.

        Args:
            s: the stream that the layer is given.
            kept: a dictionary that is given what the stream is to have beside it.
        """

        def keep(value: Tensor) -> Tensor:
            kept["first_value"] = value
            return value

        def mix(value: Tensor) -> Tensor:
            return self.first_weight * s["first_value"] + self.own_weight * value

        if "first_value" not in s:
            return {"edit_value": keep}
        return {"edit_value": mix} if self.mixes else {}

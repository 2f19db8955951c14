"""GPAS: the option ``gpas``, common to all variants whose stream is one sum.

::

    x ─┬─► F ─► + ─► S ─► x'        Pre-LN kinds                x ─┬─► F ─────► + ─► LN ─► x'    Post-LN kinds
       └────────┘                                                  └─► S ─► ────┘

Chen et al. 2025, "GPAS: Accelerating Convergence of LLM Pretraining via Gradient-Preserving Activation Scaling":
S(x) = x - silu(a) stop_gradient(x). Forward it scales by 1 - silu(a), the gradient to x is the identity, and the gate a
learns by itself; a = 0 at first, where S is the identity. silu is bounded below by -0.278, so S enlarges to 1.278 at
most; a > 1.278 turns the sign of the stream. Checked against dandingsky/GPAS@3198068 (``modeling_llama.py``). With
``layer`` there is one gate per layer, which its sub-layers share, as in the authors' code; their figure leaves it open.

Post-LN and its relatives scale the residual alone: the branch reads what is not scaled. In an encoder-decoder
cross-attention is treated as the other sub-layers are, which is our choice. Weight decay spares the gates.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

GateScope = Literal["none", "layer"]


class ActivationScaling(nn.Module):
    """Scale the stream in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return S(x), (T, B, C), after a sub-layer of the layer."""
        return x - silu(self.gate) * x.detach()

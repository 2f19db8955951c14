"""Replace fairseq's dropout by one that is faster on a CPU."""

from __future__ import annotations

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn

from fairseq_residuals.wirings.ops.bit_dropout import LEVELS, bit_dropout


class FastDropout(FairseqDropout):  # type: ignore[misc]
    """Use :func:`.bit_dropout` in training on a CPU, and fairseq's dropout elsewhere.

    The probability is rounded to a multiple of 2^-16.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Drop values of x, (...) -> (...)."""
        dropped = round(self.p * LEVELS)
        serves = self.training and x.device.type == "cpu" and torch.is_grad_enabled() and 0 < dropped < LEVELS
        # torch.compile fuses fairseq's dropout, and would break its graph at this one
        if not serves or torch.compiler.is_compiling():
            return super().forward(x, inplace)
        return bit_dropout(x, dropped)


def make_dropouts_fast(model: nn.Module) -> None:
    """Replace fairseq's dropouts."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is FairseqDropout:
                setattr(module, name, FastDropout(child.p, child.module_name))

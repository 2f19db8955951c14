"""Bias, activation and dropout of each FFN as one kernel (:mod:`fairseq_residuals.ops.bias_activation`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_residuals.core.feed_forward import ACTIVATIONS
from fairseq_residuals.core.layer import ResidualLayer
from fairseq_residuals.ops.bias_activation import Kind, bias_activation
from fairseq_residuals.ops.seeded_dropout import draw_dropout
from fairseq_residuals.performance.relu_in_place import ReLUInPlace
from fairseq_residuals.utils.torch_private import has_hooks
from fairseq_residuals.utils.triton_kernels import kernels_run_on

KINDS: dict[Any, Kind] = {
    F.relu: "relu",
    ACTIVATIONS["gelu"]: "gelu",
    ACTIVATIONS["gelu_accurate"]: "gelu_accurate",
}
"""By the functions of this package, and by those of fairseq where it is installed."""
try:
    from fairseq.modules.gelu import gelu, gelu_accurate
except ModuleNotFoundError as error:
    if error.name != "fairseq":
        raise
else:
    KINDS |= {gelu: "gelu", gelu_accurate: "gelu_accurate"}


class ProductAlone:
    """Replaces the forward of the first matrix: the bias is added by :class:`FusedActivation`."""

    def __init__(self, fc1: nn.Linear) -> None:
        self.fc1, self.forward = fc1, fc1.forward

    def __call__(self, h: Tensor) -> Tensor:
        return F.linear(h, self.fc1.weight) if fuses(h) else self.forward(h)


class FusedActivation:
    """Replaces the activation of a layer: adds the bias before it, and drops after it."""

    def __init__(self, fc1: nn.Linear, activation: Any, kind: Kind, dropout: Any) -> None:
        self.fc1, self.activation, self.kind, self.dropout = fc1, activation, kind, dropout

    def __call__(self, h: Tensor) -> Tensor:
        if not fuses(h):
            return self.activation(h)  # type: ignore[no-any-return]
        p = self.dropout.module.p if self.dropout.drops else 0.0
        return bias_activation(h, self.fc1.bias, self.kind, draw_dropout(p, h.device))


class DroppedBefore:
    """Replaces the forward of the dropout, which :class:`FusedActivation` has applied."""

    def __init__(self, module: Any) -> None:
        self.module, self.forward = module, module.forward

    @property
    def drops(self) -> bool:
        """Whether the module drops anything now."""
        return self.module.training or getattr(self.module, "apply_during_inference", False)

    def __call__(self, h: Tensor, *args: Any, **kwargs: Any) -> Any:
        return h if fuses(h) else self.forward(h, *args, **kwargs)


def fuses(h: Tensor) -> bool:
    """Return whether what lies between the products of an FFN is one kernel for ``h``, in and behind the first."""
    return kernels_run_on(h) and not torch.is_autocast_enabled(h.device.type)


def attach(model: nn.Module) -> None:
    """Attach it to every layer whose activation there is a kernel for, and that nobody watches by hooks."""
    for layer in model.modules():
        if not isinstance(layer, ResidualLayer) or "ffn" not in layer.kinds or has_hooks(layer):
            continue
        activation = layer.activation_fn
        kind = KINDS.get(F.relu if isinstance(activation, ReLUInPlace) else activation)
        if kind is not None and type(layer.fc1) is nn.Linear and layer.fc1.bias is not None:
            dropout = DroppedBefore(layer.activation_dropout_module)
            layer.activation_fn = FusedActivation(layer.fc1, activation, kind, dropout)
            layer.fc1.forward = ProductAlone(layer.fc1)  # type: ignore[method-assign, assignment]
            layer.activation_dropout_module.forward = dropout  # type: ignore[method-assign]

"""What an analysis is given: a model with wired stacks, fairseq's or anybody's, and a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.stack import Stack


class Subject:
    """A model that can be run on one batch."""

    model: Any
    loss_scale: float = 1.0
    """Gradients are computed of the loss times this, and told without it."""

    def loss(self) -> Tensor:
        """Run the model and return its loss, a number."""
        raise NotImplementedError

    def backward(self) -> float:
        """Compute the gradients of the loss, times ``loss_scale``, and return the loss."""
        self.model.zero_grad(set_to_none=True)
        loss = self.loss()
        (loss * self.loss_scale).backward()
        return loss.item()


@dataclass
class ModelAndLoss(Subject):
    """A model of any kind, with stacks of :func:`.build_stack` or :func:`.wrap` somewhere in it."""

    model: nn.Module
    compute_loss: Callable[[], Tensor]
    """Runs the model on a batch, always the same."""

    def loss(self) -> Tensor:
        """As :meth:`Subject.loss`."""
        return self.compute_loss()


def stacks(model: nn.Module) -> list[Stack]:
    """Return the wired stacks of a model, the encoder's first.

    Raises:
        UserError: it has none.
    """
    wired = [module for module in model.modules() if isinstance(module, Stack)]
    if not wired:
        raise UserError(
            "this model has no wired stack; `fairseq-residuals import --from fairseq FILE OUT` makes one of a"
            " checkpoint of stock fairseq, and fairseq_residuals.wrap of a model of your own"
        )
    return wired

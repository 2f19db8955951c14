"""A training step's forward and backward pass as CUDA graphs (``--cuda-graphs``), one pair for each shape of a batch.

The kernels of a small Transformer take less time than Python takes to launch them: thousands a step. The graphs compute
the same numbers, and draw the same kind of random numbers for dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals import cuda_graphs
from fairseq_residuals.chunked_loss import Ends, Sums
from fairseq_residuals.compiling import hooked
from modern_fairseq.errors import UserError

MOST_SHAPES = 256
"""That graphs are made for; batches of others are computed as without."""
Inputs = dict[str, Tensor]


class Gradients:
    """The memory that all graphs add gradients to."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.memory = [torch.zeros_like(p) for p in parameters]

    def attach(self, which: list[int]) -> None:
        """Makes it the gradients of some parameters, which keep what they have got so far."""
        without = [i for i in which if self.parameters[i].grad is None]
        if without:
            torch._foreach_zero_([self.memory[i] for i in without])
        for i in which:
            p, memory = self.parameters[i], self.memory[i]
            if p.grad is not None and p.grad is not memory:  # of a batch that was computed without a graph
                memory.copy_(p.grad)
            p.grad = memory


class Step:
    """The two graphs of one shape."""

    def __init__(
        self,
        features_of: Callable[[Inputs], Tensor],
        ends_of: Callable[[Tensor, Tensor, Tensor], Ends],
        weight: nn.Parameter,
        inputs: Inputs,
        target: Tensor,
        leaves: list[Tensor],
        gradients: Gradients,
        pool: Any,
    ) -> None:
        """
        Args:
            features_of, ends_of: as :class:`Steps` has them, of its model.
            weight: of the output's projection.
            inputs, target: a batch of the shape.
            leaves: what the gradients are of, in the order of ``gradients``.
        """
        device = weight.device
        self.inputs, self.target = {name: x.clone() for name, x in inputs.items()}, target.clone()
        self.scale = torch.ones((), device=device)
        self.gradients = gradients
        self.which: list[int] = []

        def forward() -> Sums:
            features = features_of(self.inputs)
            self.made = features, ends_of(features.detach(), weight, self.target)
            return self.made[1].sums

        def backward() -> list[Tensor]:
            features, ends = self.made
            assert ends.of_features is not None and ends.of_weight is not None
            scale = self.scale / ends.boost
            made = torch.autograd.grad(
                features,
                leaves,
                (ends.of_features.float() * scale).view_as(features).to(features.dtype),
                allow_unused=True,
            )
            found = {i: gradient for i, gradient in enumerate(made) if gradient is not None}
            place = next(i for i, p in enumerate(gradients.parameters) if p is weight)
            of_weight = (ends.of_weight * scale).to(weight.dtype)
            found[place] = of_weight + found[place] if place in found else of_weight
            self.which = sorted(found)
            return [found[i] for i in self.which]

        def add() -> None:
            made = backward()
            torch._foreach_add_([gradients.memory[i] for i in self.which], made)

        with cuda_graphs.AnyPadding():
            cuda_graphs.warm_up(lambda: (forward(), backward()), device)
            self.forward = cuda_graphs.Graph(forward, device, pool)
            self.backward = cuda_graphs.Graph(add, device, pool)
        del self.made

    def run(self, inputs: Inputs, target: Tensor) -> Sums:
        for name, x in inputs.items():
            self.inputs[name].copy_(x)
        self.target.copy_(target)
        self.forward.replay()
        return Sums(*(x.clone() for x in self.forward.result))

    def add_gradients(self, of_loss: Tensor) -> None:
        self.scale.copy_(of_loss)
        self.gradients.attach(self.which)
        self.backward.replay()


class _Replayed(torch.autograd.Function):
    """Sums of a batch; in the backward pass parameters get their gradients, not autograd."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, step: Step, inputs: Inputs, target: Tensor) -> Sums:
        ctx.step = step
        sums = step.run(inputs, target)
        ctx.mark_non_differentiable(sums.nll, sums.correct)
        ctx.set_materialize_grads(False)
        return sums

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor, *_: Any) -> tuple[None, ...]:
        ctx.step.add_gradients(of_loss)
        return (None,) * 4


@contextmanager
def _replaced(model: nn.Module, others: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """In it, ``model`` has other parameters. torch.func.functional_call leaves one that has a module at two places with
    some of them for good."""
    places = [(m._parameters, name, p) for m in model.modules() for name, p in m._parameters.items() if p is not None]
    try:
        for parameters, name, p in places:
            parameters[name] = others[p]  # type: ignore[assignment]
        yield
    finally:
        for parameters, name, p in places:
            parameters[name] = p


class Steps:
    """Those of one model, made as batches of new shapes come."""

    def __init__(
        self,
        model: Any,
        features_of: Callable[[Callable[..., Any], Inputs], Tensor],
        ends_of: Callable[[Tensor, Tensor, Tensor], Ends],
    ) -> None:
        """
        Args:
            features_of: (B, T, C), what the model's output projection is fed, of what runs it.
            ends_of: the loss of features (B, T, C), the projection's matrix and target (B, T), with its gradients.
        """
        # parameters of the graphs' own, by the same memory: autograd ties those of the model to the stream of the first
        # backward pass
        own = {p: p.detach().requires_grad_(p.requires_grad) for p in model.parameters()}

        def run(**inputs: Any) -> Any:
            with _replaced(model, own):
                return model(**inputs)

        self.features_of, self.ends_of = partial(features_of, run), ends_of
        self.model, self.weight = model, model.decoder.output_projection.weight
        self.gradients = Gradients([p for p in model.parameters() if p.requires_grad])
        self.leaves = [p for p in own.values() if p.requires_grad]
        self.pool = cuda_graphs.new_pool()
        self.steps: dict[Any, Step] = {}

    def sums(self, inputs: Inputs, target: Tensor) -> Sums | None:
        """Of a batch; None where graphs do not serve: there are some of enough shapes, or somebody looks into the
        model.

        Raises:
            UserError: the model waits for the device in its forward or backward pass.
        """
        shape = tuple((name, x.shape, x.dtype) for name, x in [*inputs.items(), ("target", target)])
        if hooked(self.model) or (shape not in self.steps and len(self.steps) == MOST_SHAPES):
            return None
        if shape not in self.steps:
            self.steps[shape] = self._record(inputs, target)
        return Sums(*_Replayed.apply(self.weight, self.steps[shape], inputs, target))  # type: ignore[no-untyped-call]

    def _record(self, inputs: Inputs, target: Tensor) -> Step:
        try:
            return Step(
                self.features_of,
                self.ends_of,
                self.weight,
                inputs,
                target,
                self.leaves,
                self.gradients,
                self.pool,
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"--cuda-graphs: a step of this model cannot be recorded ({reason}); leave it out"
            ) from error

"""A training step's forward and backward pass as CUDA graphs (``--cuda-graphs``), one pair for each shape of a batch.

The kernels of a small Transformer take less time than Python takes to launch them: thousands a step. The graphs compute
the same numbers, and draw the same kind of random numbers for dropout. They end in the loss in chunks.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_residuals.plugin.speed import cuda_graphs
from fairseq_residuals.plugin.torch_private import add_all_, zero_all_
from fairseq_residuals.plugin.training.chunked_cross_entropy import LossAndGradients, Sums
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.torch_private import has_hooks

logger = logging.getLogger(__name__)

MOST_SHAPES = 256
"""Most shapes that graphs are made for; batches of others are computed as without graphs."""
SHARE = 0.5
"""Share of the device's memory that graphs may take: what is computed without them needs memory of its own."""
Inputs = dict[str, Any]
"""Arguments of a model; what is no tensor belongs to the shape."""


class Gradients:
    """The memory that all graphs add gradients to."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.memory = [torch.zeros_like(p) for p in parameters]

    def attach(self, which: list[int]) -> None:
        """Make it the gradients of some parameters, which keep what they have got so far."""
        without = [i for i in which if self.parameters[i].grad is None]
        if without:
            zero_all_([self.memory[i] for i in without])
        for i in which:
            p, memory = self.parameters[i], self.memory[i]
            if p.grad is not None and p.grad is not memory:  # of a batch that was computed without a graph
                memory.copy_(p.grad)
            p.grad = memory


class RecordedStep:
    """The two graphs of one shape."""

    def __init__(self, of: RecordedSteps, inputs: Inputs, target: Tensor) -> None:
        """Record the forward and backward pass of a batch of this shape.

        Args:
            inputs, target: a batch of the shape.
        """
        self.of = of
        self.inputs = {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}
        self.target = target.clone()
        self.scale = torch.ones((), device=target.device)
        self.which: list[int] = []
        with cuda_graphs.AnyPadding():
            cuda_graphs.warm_up(lambda: (self._forward(), self._backward()), target.device)
            self.forward = cuda_graphs.Graph(self._forward, target.device, of.pool)
            self.backward = cuda_graphs.Graph(self._add, target.device, of.pool)
        del self.made
        # tensors that the model has made for batches like this (masks, positions), and may make anew for longer ones
        self.kept = [
            x for m in of.model.modules() for x in (*vars(m).values(), *m._buffers.values()) if isinstance(x, Tensor)
        ]

    def _forward(self) -> Sums:
        features = self.of.features_of(self.inputs)
        self.made = features, self.of.loss_of(features.detach(), self.of.weight, self.target)
        return self.made[1].sums

    def _backward(self) -> list[Tensor]:
        """Return the gradients of those parameters that have any, of which :attr:`which` are the places."""
        features, loss = self.made
        assert loss.grad_features is not None and loss.grad_weight is not None
        scale = self.scale / loss.prescale
        grad_features = (loss.grad_features.float() * scale).view_as(features).to(features.dtype)
        made = torch.autograd.grad(features, self.of.leaves, grad_features, allow_unused=True)
        found = {i: gradient for i, gradient in enumerate(made) if gradient is not None}
        place = next(i for i, p in enumerate(self.of.gradients.parameters) if p is self.of.weight)
        grad_weight = (loss.grad_weight * scale).to(self.of.weight.dtype)
        found[place] = grad_weight + found[place] if place in found else grad_weight
        self.which = sorted(found)
        return [found[i] for i in self.which]

    def _add(self) -> None:
        made = self._backward()
        add_all_([self.of.gradients.memory[i] for i in self.which], made)

    def run(self, inputs: Inputs, target: Tensor) -> Sums:
        for name, x in inputs.items():
            if isinstance(x, Tensor):
                self.inputs[name].copy_(x)
        self.target.copy_(target)
        self.forward.replay()
        self.of.latest = self
        return Sums(*(x.clone() for x in self.forward.result))

    def add_gradients(self, grad_loss: Tensor) -> None:
        """Add the gradients of the loss, times ``grad_loss``, to those of the parameters.

        Raises:
            RuntimeError: what the forward pass has computed is gone.
        """
        if self.of.latest is not self:
            raise RuntimeError("--cuda-graphs: one backward pass has to follow each forward pass")
        self.of.latest = None
        self.scale.copy_(grad_loss)
        self.of.gradients.attach(self.which)
        self.backward.replay()


class _Replayed(torch.autograd.Function):
    """Sums of a batch; in the backward pass parameters get their gradients, not autograd."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, step: RecordedStep, inputs: Inputs, target: Tensor) -> Sums:
        ctx.step = step
        sums = step.run(inputs, target)
        ctx.mark_non_differentiable(sums.nll, sums.correct)
        ctx.set_materialize_grads(False)
        return sums

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[None, ...]:
        ctx.step.add_gradients(grad_loss)
        return (None,) * 4


@contextmanager
def _replaced(model: nn.Module, others: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Give ``model`` other parameters within this context.

    torch.func.functional_call leaves one that has a module at two places with some of them for good.
    """
    places = [(m._parameters, name, p) for m in model.modules() for name, p in m._parameters.items() if p is not None]
    try:
        for parameters, name, p in places:
            parameters[name] = others[p]  # type: ignore[assignment]
        yield
    finally:
        for parameters, name, p in places:
            parameters[name] = p


class RecordedSteps:
    """Recorded steps of one model, made as batches of new shapes come."""

    def __init__(
        self,
        model: Any,
        features_of: Callable[[Callable[..., Any], Inputs], Tensor],
        loss_of: Callable[[Tensor, Tensor, Tensor], LossAndGradients],
    ) -> None:
        """Make the steps of a model.

        Args:
            features_of: (B, T, C), what the model's output projection is fed, of what runs it.
            loss_of: the loss of features (B, T, C), the projection's matrix and target (B, T), with its gradients.
        """
        self.model, self.weight = model, model.decoder.output_projection.weight
        self.features_of, self.loss_of = partial(features_of, self._run), loss_of
        self._begin()

    def _begin(self) -> None:
        """Take the parameters as they are now, without graphs yet."""
        # parameters of the graphs' own, by the same memory: autograd ties those of the model to the stream of the first
        # backward pass
        self.own = {p: p.detach().requires_grad_(p.requires_grad) for p in self.model.parameters()}
        self.state = self._state()
        self.gradients = Gradients([p for p in self.own if p.requires_grad])
        self.leaves = [p for p in self.own.values() if p.requires_grad]
        self.steps: dict[Any, RecordedStep] = {}
        self.bytes = 0
        """Bytes of memory that the graphs have taken."""
        self.latest: RecordedStep | None = None
        """Step whose backward pass is to come."""

    def _state(self) -> list[tuple[int, bool]]:
        """Return what of the parameters is part of a graph: where they lie in memory, and whether they are trained."""
        return [(p.data_ptr(), p.requires_grad) for p in self.model.parameters()]

    def _run(self, **inputs: Any) -> Any:
        with _replaced(self.model, self.own):
            return self.model(**inputs)

    def sums(self, inputs: Inputs, target: Tensor) -> Sums | None:
        """Return the sums of a batch, or None where graphs do not serve.

        They do not where they have enough shapes or memory, somebody looks into the model, an input cannot be part of a
        shape, or the output projection is frozen. Parameters that were frozen or replaced get new graphs.

        Raises:
            UserError: the model waits for the device in its forward or backward pass.
        """
        shape = tuple(
            (name, x.shape, x.dtype) if isinstance(x, Tensor) else (name, x)
            for name, x in [*inputs.items(), ("target", target)]
        )
        if has_hooks(self.model) or not self.weight.requires_grad or not all(isinstance(x, Hashable) for x in shape):
            return None
        if self.state != self._state():
            self._begin()
        if shape not in self.steps:
            if len(self.steps) == MOST_SHAPES or self.bytes > SHARE * cuda_graphs.device_bytes(target.device):
                _tell_of_too_many_shapes(len(self.steps))
                return None
            self.steps[shape] = self._record(inputs, target)
        return Sums(*_Replayed.apply(self.weight, self.steps[shape], inputs, target))  # type: ignore[no-untyped-call]

    def _record(self, inputs: Inputs, target: Tensor) -> RecordedStep:
        if not self.steps:  # memory belongs to the graphs that use it
            self.pool = cuda_graphs.new_pool()
        before = cuda_graphs.taken_bytes(target.device)
        with cuda_graphs.explained("--cuda-graphs: a step of this model cannot be recorded ({}); leave it out"):
            step = RecordedStep(self, inputs, target)
        self.bytes += max(0, cuda_graphs.taken_bytes(target.device) - before)
        return step


@functools.cache
def _tell_of_too_many_shapes(most: int) -> None:
    logger.warning(
        "--cuda-graphs: batches have more than %d shapes, for which there are graphs and memory, and those of others"
        " are computed without graphs; --packed makes all batches one shape, --num-batch-buckets makes them fewer",
        most,
    )


class RecordedSums:
    """Replaces ``sums`` of a criterion: in training by graphs, otherwise and where these do not serve by its own."""

    def __init__(self, criterion: Any) -> None:
        self.criterion, self.plain = criterion, criterion.sums
        self.steps: dict[nn.Module, RecordedSteps] = {}

    def __call__(self, model: nn.Module, sample: dict[str, Any], target: Tensor) -> Sums:
        if not model.training or not torch.is_grad_enabled():
            return self.plain(model, sample, target)
        if model not in self.steps:
            self.steps[model] = RecordedSteps(model, self.criterion.features, self.criterion.loss_and_gradients)
        sums = self.steps[model].sums(sample["net_input"], target)
        return self.plain(model, sample, target) if sums is None else sums


def record_steps(criterion: Any) -> None:
    """Have the criterion in chunks compute what it trains by graphs, from the first batch of each shape on."""
    if not records_steps(criterion):
        criterion.sums = RecordedSums(criterion)


def records_steps(criterion: Any) -> bool:
    """Return whether a criterion computes what it trains by graphs."""
    return isinstance(getattr(criterion, "sums", None), RecordedSums)


def refuse_unrecordable(model: Any, device: torch.device) -> None:
    """Refuse a model, with the wrappers around it, and a device for which there are no graphs.

    Raises:
        UserError: it is one.
    """
    if device.type != "cuda":
        raise UserError("--cuda-graphs is for training on a CUDA device; leave it out on a CPU")
    if any(isinstance(m, DistributedDataParallel) for m in model.modules()):
        raise UserError("--cuda-graphs on several GPUs needs --ddp-backend legacy_ddp")
    projection = getattr(model.decoder, "output_projection", None)
    if has_hooks(model) or not isinstance(projection, nn.Linear) or not projection.weight.requires_grad:
        raise UserError("--cuda-graphs needs words as input, a trained output projection, no hooks and no fixnorm=true")

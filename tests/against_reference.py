"""Checks of a differentiable op against its reference, the same for all ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Op = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """An op of some shapes.

    Attributes:
        op, reference: of tensors, to a tensor or a tuple of tensors.
        shapes: of the inputs.
        halved: which inputs are in half precision where streams are; None: all.
        compiled: whether to compile the op, as torch.compile compiles a layer that contains it; one case is enough.
    """

    name: str
    op: Op
    reference: Op
    shapes: tuple[tuple[int, ...], ...]
    halved: tuple[int, ...] | None = None
    compiled: bool = False

    def inputs(self, dtype: torch.dtype = torch.float64, half: torch.dtype | None = None) -> list[Tensor]:
        """Leaves, the same numbers for each precision but for rounding."""
        draw = torch.Generator().manual_seed(5)
        values = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in self.shapes]
        if half is not None:
            chosen = range(len(values)) if self.halved is None else self.halved
            values = [x.to(half) if i in chosen else x for i, x in enumerate(values)]
            return [x.float() if x.dtype == torch.float64 else x for x in values]
        return [x.to(dtype) for x in values]


def outputs_of(op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    outputs = op(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def loss_of(outputs: Sequence[Tensor]) -> Tensor:
    """A loss that weighs all entries unlike."""
    draw = torch.Generator().manual_seed(6)
    weights = [torch.randn(out.shape, generator=draw).bfloat16().to(out.dtype) for out in outputs]
    return torch.stack([(out * w).double().sum() for out, w in zip(outputs, weights, strict=True)]).sum()


def evaluate(op: Op, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and gradients of all inputs, which become leaves."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    outputs = outputs_of(op, leaves)
    return [out.detach() for out in outputs], list(torch.autograd.grad(loss_of(outputs), leaves))


def assert_near(found: Sequence[Tensor], expected: Sequence[Tensor], error: float) -> None:
    """By the norm of each tensor."""
    assert len(found) == len(expected)
    for i, (x, exact) in enumerate(zip(found, expected, strict=True)):
        assert x.shape == exact.shape
        assert (x.double() - exact.double()).norm() <= error * exact.double().norm(), i


def in_double_precision(case: Case) -> None:
    found, expected = (evaluate(op, case.inputs()) for op in (case.op, case.reference))
    for ours, theirs in zip(found, expected, strict=True):
        assert_near(ours, theirs, 1e-13)
    assert all(gradient.norm() > 0 for gradient in expected[1])


def by_finite_differences(case: Case) -> None:
    """First and second derivatives."""
    inputs = tuple(x.requires_grad_() for x in case.inputs())
    assert torch.autograd.gradcheck(case.op, inputs)
    assert torch.autograd.gradgradcheck(case.op, inputs)


def in_single_precision(case: Case) -> None:
    found, expected = evaluate(case.op, case.inputs(torch.float32)), evaluate(case.reference, case.inputs())
    for ours, theirs in zip(found, expected, strict=True):
        assert all(x.dtype == torch.float32 for x in ours)
        assert_near(ours, theirs, 1e-5)


def in_bf16(case: Case) -> None:
    """Beside the exact values for rounded inputs; gradients have the precision of their inputs."""
    inputs = case.inputs(half=torch.bfloat16)
    found, expected = evaluate(case.op, inputs), evaluate(case.reference, [x.double() for x in inputs])
    assert [x.dtype for x in found[0]] == [x.dtype for x in outputs_of(case.reference, inputs)]
    assert [x.dtype for x in found[1]] == [x.dtype for x in inputs]
    for ours, theirs in zip(found, expected, strict=True):
        assert_near(ours, theirs, 4 * torch.finfo(torch.bfloat16).eps)


def without_gradients(case: Case) -> None:
    inputs = [x.requires_grad_() for x in case.inputs()]
    with torch.no_grad():
        outputs = outputs_of(case.op, inputs)
    assert not any(out.requires_grad for out in outputs)
    assert_near(outputs, outputs_of(case.reference, inputs), 1e-13)


def of_inputs_that_are_not_contiguous(case: Case) -> None:
    """The first dimension is the last one in memory, where every other number is of something else."""
    strided = [x.movedim(0, -1).repeat_interleave(2, -1)[..., ::2].movedim(-1, 0) for x in case.inputs()]
    assert any(not x.is_contiguous() for x in strided)
    for ours, theirs in zip(evaluate(case.op, strided), evaluate(case.reference, case.inputs()), strict=True):
        assert_near(ours, theirs, 1e-13)


def of_expanded_inputs(case: Case) -> None:
    """One number in memory for each whole input."""

    def of_scalars(op: Op) -> Op:
        return lambda *scalars: op(*(x.expand(shape) for x, shape in zip(scalars, case.shapes, strict=True)))

    scalars = [x.flatten()[0] for x in case.inputs()]
    expected = evaluate(of_scalars(case.reference), scalars)
    for ours, theirs in zip(evaluate(of_scalars(case.op), scalars), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def where_one_input_has_a_gradient(case: Case) -> None:
    _, expected = evaluate(case.reference, case.inputs())
    for i in range(len(case.shapes)):
        inputs = case.inputs()
        inputs[i].requires_grad_()
        assert_near(torch.autograd.grad(loss_of(outputs_of(case.op, inputs)), inputs[i]), [expected[i]], 1e-13)


def of_one_output_alone(case: Case) -> None:
    """Of several outputs, the others have no gradient."""

    def last(op: Op) -> Op:
        return lambda *inputs: outputs_of(op, inputs)[-1]

    leaves = [x.requires_grad_() for x in case.inputs()]
    found, expected = (
        torch.autograd.grad(loss_of([last(op)(*leaves)]), leaves, allow_unused=True, materialize_grads=True)
        for op in (case.op, case.reference)
    )
    assert_near(found, expected, 1e-13)


def used_twice(case: Case) -> None:
    """Two calls with the same inputs, and two backward passes through both."""
    leaves = [x.requires_grad_() for x in case.inputs()]
    _, expected = evaluate(case.reference, leaves)
    loss = loss_of(outputs_of(case.op, leaves)) + loss_of(outputs_of(case.op, leaves))
    for _ in range(2):
        gradients = torch.autograd.grad(loss, leaves, retain_graph=True)
        assert_near(gradients, [2 * gradient for gradient in expected], 1e-13)


def compiled_without_a_break(case: Case) -> None:
    """As a layer is compiled in training."""
    if case.compiled:
        torch.compiler.reset()
        compiled = torch.compile(case.op, fullgraph=True, backend="aot_eager")
        expected = evaluate(case.reference, case.inputs())
        for ours, theirs in zip(evaluate(compiled, case.inputs()), expected, strict=True):
            assert_near(ours, theirs, 1e-13)


CHECKS = (
    in_double_precision,
    by_finite_differences,
    in_single_precision,
    in_bf16,
    without_gradients,
    of_inputs_that_are_not_contiguous,
    of_expanded_inputs,
    where_one_input_has_a_gradient,
    of_one_output_alone,
    used_twice,
    compiled_without_a_break,
)

"""Every wiring under what PyTorch does to code: second derivatives, torch.func, compilation, export, no memory."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from tiny import perturb
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairseq_residuals import UserError, build_stack
from fairseq_residuals.wirings.blocks.transformer import TransformerStack
from fairseq_residuals.wirings.core.registry import VARIANTS
from tests import what_works
from tests.rotation import SHAPES_OF_CODE, rotated

every_wiring = pytest.mark.parametrize("name", sorted(VARIANTS))
WRITTEN_OUT = ("attention_residuals", "hyper_connections", "mudd")
"""A wiring for each op with a gradient written out, which is what fails where anything does; test_contract.py compiles
sinkhorn's."""


def stack_of(name: str) -> TransformerStack:
    """A decoder alone, or an encoder where the wiring is for no other stack; in evaluation, with every number moved."""
    alone = VARIANTS[name].refusal(alone=True, topmost=True)
    other = {"task": "encoder", "other_depth": 2} if alone else {"task": "language_model"}
    other |= {"ffn": "gelu"} if VARIANTS[name].has_ffn else {}
    torch.manual_seed(1)
    return perturb(build_stack(name, depth=2, dim=8, heads=2, ffn_dim=16, **other)).double().eval()  # type: ignore[arg-type]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.double)


def norm(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors]).norm()


@every_wiring
def test_second_derivatives(name: str) -> None:
    """A product of the Hessian with a vector, beside differences of gradients."""
    stack, x = stack_of(name), drawn(4, 2, 8)
    parameters = list(stack.parameters())
    direction = [drawn(*p.shape) for p in parameters]

    def gradients() -> list[Tensor]:
        loss = stack(x).pow(3).mean()
        return list(torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True))

    def gradients_at(step: float) -> list[Tensor]:
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=step)
        found = [g.detach() for g in gradients()]
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=-step)
        return found

    # the fused kernels of attention have no second derivative
    with sdpa_kernel(SDPBackend.MATH):
        along = torch.stack([(g * d).sum() for g, d in zip(gradients(), direction, strict=True)]).sum()
        product = torch.autograd.grad(along, parameters, materialize_grads=True)
        above, below = gradients_at(1e-6), gradients_at(-1e-6)
    expected = [(a - b) / 2e-6 for a, b in zip(above, below, strict=True)]
    assert norm(expected) > 0
    assert norm(p - e for p, e in zip(product, expected, strict=True)) < 1e-6 * norm(expected)


@every_wiring
def test_gradients_by_torch_func(name: str) -> None:
    """A gradient for each sentence at once, and a derivative along a direction."""
    stack, x = stack_of(name), drawn(4, 3, 8)
    parameters, buffers = dict(stack.named_parameters()), dict(stack.named_buffers())

    def loss(parameters: dict[str, Tensor], sentence: Tensor) -> Tensor:
        return functional_call(stack, (parameters, buffers), (sentence.unsqueeze(1),)).pow(3).mean()  # type: ignore[no-any-return]

    by_sentence = vmap(grad(loss), in_dims=(None, 1))(parameters, x)
    for i in range(3):
        expected = torch.autograd.grad(loss(parameters, x[:, i]), list(parameters.values()), materialize_grads=True)
        for found, gradient in zip(by_sentence.values(), expected, strict=True):
            torch.testing.assert_close(found[i], gradient, rtol=1e-7, atol=1e-10)
    with sdpa_kernel(SDPBackend.MATH):
        _, slope = jvp(lambda p: loss(p, x[:, 2]), (parameters,), (parameters,))
    products = [(g * p).sum() for g, p in zip(expected, parameters.values(), strict=True)]
    torch.testing.assert_close(slope, torch.stack(products).sum())


# test_contract.py compiles every wiring with sizes that vary
@pytest.mark.parametrize("name", SHAPES_OF_CODE)
def test_export_with_a_length_that_varies(name: str) -> None:
    what_works.exported(name)


# Dynamo takes seconds a wiring; test_contract.py compiles every wiring in training
@pytest.mark.parametrize("name", (*WRITTEN_OUT, "admin", "dlcl_pre", "pre_ln"))
def test_compiled_for_all_sizes_in_training_and_evaluation(name: str) -> None:
    torch.compiler.reset()
    stack = what_works.stack_of(name)
    compiled = torch.compile(stack, fullgraph=True, backend="eager", dynamic=True)
    what_works.same_step(compiled, stack, lengths=(4, 6))
    stack.eval()
    with torch.no_grad():
        x = what_works.drawn(6)
        torch.testing.assert_close(compiled(x), stack(x), rtol=1e-4, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(compiled(x), stack(x), rtol=0, atol=0.02)


def test_admin_says_what_has_to_come_before_a_transform_or_a_graph() -> None:
    stack, x = stack_of("admin").train(), drawn(4, 2, 8)
    with pytest.raises(UserError, match="run the stack on a batch in training mode before it is compiled"):
        grad(lambda x: stack(x).sum())(x)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="run the stack on a batch in training mode"):
        torch.compile(stack, fullgraph=True, backend="eager")(x)


# one wiring has what no checkpoint holds
@pytest.mark.parametrize(
    ("name", "assign"),
    dict.fromkeys([*rotated(sorted(VARIANTS), (False, True)), ("mhc_lite", False), ("mhc_lite", True)]),
)
def test_loading_restores_all_of_a_model_that_was_built_without_memory(name: str, assign: bool) -> None:
    stack, x = stack_of(name), drawn(4, 2, 8)
    with torch.device("meta"):
        empty = stack_of(name)
    if not assign:
        empty = empty.to_empty(device="cpu")
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.data.fill_(torch.nan)  # what memory happens to hold
    empty.load_state_dict(stack.state_dict(), assign=assign)
    torch.testing.assert_close(empty(x), stack(x), rtol=0, atol=0)

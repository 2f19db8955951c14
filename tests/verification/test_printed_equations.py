"""The equations that are printed of a wiring are what runs: evaluated as text, they give the stack's output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import DataObject, data
from random_stacks import Draw, draws, examples
from tiny import choices
from torch import Tensor

from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring
from tests.golden_check.equations.evaluation import evaluate
from tests.golden_check.equations.parser import parse

TOLERANCE = 1e-7
"""Of the largest magnitude, in double precision; norms over two channels multiply rounding by hundreds."""


def with_gradients(output: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """The output, and the gradients at ``leaves`` of a sum that weighs its entries unlike."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    gradients = torch.autograd.grad((output * weights).sum(), leaves, materialize_grads=True)
    return output.detach(), *gradients


def difference(one: Draw, equations: tuple[str, ...]) -> float:
    """How far the equations are from the stack, in output and gradients, those of parameters among them."""
    stack = one.build()
    x, context = one.inputs()
    leaves = [x, *(p for p in stack.parameters() if p.requires_grad)]
    expected = with_gradients(evaluate(parse(equations), stack, x, context), leaves)
    computed = with_gradients(stack(x, context)[0], leaves)
    scales = [max(1.0, e.abs().max().item()) for e in expected]
    return max((c - e).abs().max().item() / scale for c, e, scale in zip(computed, expected, scales, strict=True))


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@examples(12)
@given(data())
def test_the_printed_equations_are_what_runs(variant: str, data: DataObject) -> None:
    one = data.draw(draws(variant))
    equations = Wiring.parse(one.variant, one.args).equations
    apart = difference(one, equations)
    assert apart <= TOLERANCE, "\n".join(
        [
            f"{variant}({one.args}) in {one.shape} is {apart:.1e} from its printed equations, by docs/EQUATIONS.md:",
            *equations,
        ]
    )


DEEP = StackShape("decoder", depth=4, dim=4, ffn_dim=6, heads=2, enc_depth=3, dec_depth=4, cross=True)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_each_value_of_an_option_and_each_two_have_their_equations(variant: str) -> None:
    """Lines without gaps, too."""
    for args in ("", "norm_eps=0.3", *choices(variant), *choices(variant, 2)):
        equations = Wiring.parse(variant, args).equations
        assert equations and all(line == " ".join(line.split()) for line in equations), (args, equations)
        assert difference(Draw(variant, args, DEEP, seed=1), equations) <= TOLERANCE, args


@pytest.mark.parametrize(
    ("variant", "old", "new"),
    [
        ("post_ln", "x + F(x)", "x + F(LN(x))"),
        ("pre_ln", "x + F", "x - F"),
        ("b2t", "x_in + x", "x"),
        ("b2t", "last", "first"),
        ("deepnet", "(3 M)^(1/4)", "(3 N)^(1/4)"),
        ("keel", "else l = 1: x = LN(x", "else l = 1: x = LN(alpha x"),
        ("normformer", "drop(LN_attn(y))", "LN_attn(drop(y))"),
        ("mix_ln", "<=", "<"),
        ("realformer", "S = R_F", "S = S"),
        ("hyper_connections", "W[i,j+1]", "W[j,i+1]"),
        ("mhc", "res[j,i]", "res[i,j]"),
        ("dense_former", "0..l}", "1..l}"),
        ("attention_residuals", "0..k-1", "1..k-1"),
        ("siamese_norm", "sqrt(2 l)", "sqrt(l)"),
    ],
)
def test_another_equation_is_told_apart(variant: str, old: str, new: str) -> None:
    equations = Wiring.parse(variant).equations
    changed = tuple(line.replace(old, new) for line in equations)
    assert changed != equations
    assert difference(Draw(variant, "", DEEP, seed=1), changed) > 1000 * TOLERANCE


NEEDS_ANOTHER = {"window", "dilation", "period", "scale", "alpha", "rank"}
"""Options that say nothing by themselves, or at the value 1."""


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_an_option_that_equations_read_changes_them(variant: str) -> None:
    read: set[str] = set()

    class Reading(VARIANTS[variant].Config):  # type: ignore[name-defined,misc]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    assert VARIANTS[variant].equations_of(Reading()) == Wiring.parse(variant).equations
    texts = {choice: Wiring.parse(variant, choice).equations for choice in ("", *choices(variant))}
    unchanged = {choice.partition("=")[0] for choice, text in texts.items() if choice and text == texts[""]}
    assert not read & unchanged - NEEDS_ANOTHER

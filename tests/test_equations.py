"""The equations that are printed of a wiring are those of its options."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import choices

from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring


def test_equations_of_a_stack_without_its_top_norm_do_not_have_it() -> None:
    whole, without = Wiring.parse("pre_ln"), Wiring.parse("pre_ln", "final_norm=false")
    assert set(whole.equations) - set(without.equations) == {"output LN(x)"}


@pytest.mark.parametrize(
    ("variant", "options", "expected"),
    [
        ("realformer", "norm=pre", "attention: x = x + F(LN(x)) with R_F = R_F + S, S = R_F"),
        ("realformer", "mean=true", "attention: x = LN(x + F(x)) with R_F = R_F + S, S = R_F / l"),
        ("normformer", "", "attention: y = F'(LN(x)); y = per_head(head_gain) * y; x = x + drop(LN_attn(y))"),
        ("normformer", "scale_resids=true,scale_fc=false", "FFN: x = residual_gain * x + F(LN(x))"),
        ("normformer", "scale_attn=false,scale_heads=false", "attention: y = F'(LN(x)); x = x + drop(y)"),
        ("normformer", "cross=false", "CA: x = x + F(LN(x))"),
        ("peri_ln", "embed_norm=false", "x = x + drop(LN_out(F'(LN(x))))"),
        ("peri_ln", "dropout=before_norm", "x = x + LN_out(F(LN(x)))"),
        ("post_sublayer_norm", "qk_norm=true", "attention: x = x + drop(LN(F'(x))) with q = LN_q(q), k = LN_k(k)"),
        ("pre_ln", "norm=rms", "LN is norm_type=rms"),
        ("pre_ln", "value_residual=learnable", "SA, l > 1: F with v = first_weight v_1 + own_weight v"),
        ("pre_ln", "value_residual=sparse", "SA, l > 1, l > L - ceil(L / 3): F with v = 5 v_1 + 1 v"),
        ("dlcl_pre", "norm=false", "after each layer: y[l] = x"),
        ("dlcl_post", "softmax=true", "start: x = sum_{j=0..l} softmax_j(weight[l,j]) y[j]"),
        ("dlcl_post", "window=2", "start: x = sum_{j=0..l} weight[l,j] y[j]"),
        ("b2t_no_ln", "", "where alpha = min(L / 12, L^-0.15)"),
        ("b2t_no_ln", "alpha=0.25", "where alpha = 0.25"),
        ("resi_dual", "alpha=0.5", "output alpha x + LN(d)"),
        ("siamese_norm", "post_stream=hybrid_norm", "else: x = LN_post(x); z = F(LN(x + LN_pre(y)))"),
    ],
)
def test_equations_are_those_of_the_options(variant: str, options: str, expected: str) -> None:
    assert expected in Wiring.parse(variant, options).equations


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


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_equations_of_every_choice_are_lines_without_gaps(variant: str) -> None:
    for choice in choices(variant):
        equations = Wiring.parse(variant, choice).equations
        assert equations and all(line == " ".join(line.split()) for line in equations), (choice, equations)


NEEDS_ANOTHER = {"window", "dilation", "period", "scale", "alpha", "as_coded", "rank"}
"""Options that say nothing by themselves, or at the value 1."""

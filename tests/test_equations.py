"""The equations that are printed of a wiring are those of its options."""

from __future__ import annotations

import pytest

from fairseq_residuals.core.registry import VARIANTS
from fairseq_residuals.core.wiring import Wiring


def test_equations_of_a_stack_without_its_top_norm_do_not_have_it() -> None:
    whole, without = Wiring.parse("pre_ln"), Wiring.parse("pre_ln", "final_norm=false")
    assert set(whole.equations) - set(without.equations) == {"output LN(x)"}


@pytest.mark.parametrize(
    ("variant", "options", "expected"),
    [
        ("realformer", "norm=pre", "x = x + F(LN(x))"),
        ("realformer", "mean=true", "S = QK^T / sqrt(d) + S of the layer below, attention softmax(S / l) V in layer l"),
        ("normformer", "", "x = x + W2 LN(act(W1 LN(x)))"),
        ("normformer", "scale_resids=true,scale_fc=false", "x = gain x + W2 act(W1 LN(x))"),
        ("normformer", "scale_attn=false,scale_heads=false", "x = x + SA(LN(x))"),
        ("normformer", "scale_heads=false", "x = x + LN(SA(LN(x)))"),
        ("peri_ln", "embed_norm=false", "x = x + LN(F(LN(x))), dropout after LN"),
        ("peri_ln", "dropout=before_norm", "x = x + LN(F(LN(x))), dropout before LN"),
        (
            "post_sublayer_norm",
            "qk_norm=true",
            "x = x + LN(F(x)), in attention with LN(q), LN(k), dropout after the norm",
        ),
        ("hybrid_norm", "first_layer=star", "first layer: u = x + SA(LN(x)) with those of q, k, v; x = u + FFN(LN(u))"),
        ("pre_ln", "norm=rms", "LN is norm_type=rms"),
        ("pre_ln", "value_residual=learnable", "self-attention's values v = a v_1 + b v (value_residual=learnable)"),
        ("dlcl_pre", "norm=false", "x_{l+1} = sum_k W[l,k] y_k, in the layers x = x + F(LN(x))"),
        ("dlcl_post", "norm=false", "x_{l+1} = sum_k W[l,k] y_k, in the layers x = LN(x + F(x))"),
        ("mhc", "close=learned", "output LN(sum_j a_j X_j)"),
        ("depthwise_lstm", "hidden=1", "in = SA(LN(x)), c = [in, x]; i, f, o = sigmoid(LN(W c)); h = gelu(LN(W c))"),
        ("siamese_norm", "post_stream=hybrid_norm", "SA: z = F(g x + LN(y)); FFN: x = LN(x), z = F(LN(x + LN(y)))"),
    ],
)
def test_equations_are_those_of_the_options(variant: str, options: str, expected: str) -> None:
    assert expected in Wiring.parse(variant, options).equations


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_what_an_option_rewrites_is_in_the_equations(variant: str) -> None:
    for option, value, old, _ in VARIANTS[variant].rewrites:
        assert old in "\n".join(VARIANTS[variant].equations)
        text = str(value).lower() if isinstance(value, bool) else value
        equations = Wiring.parse(variant, f"{option}={text}").equations
        assert equations and equations != Wiring.parse(variant).equations, option

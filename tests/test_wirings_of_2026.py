"""Wirings of 2026: what they are at the start, what their equations imply, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fairseq_residuals import Stack, build_stack
from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import CONNECTIONS
from fairseq_residuals.wirings.variants.deepnet import alpha_beta

SIZES = {"depth": 4, "dim": 16, "heads": 2, "ffn_dim": 32}


def language_model(variant: str, **options: object) -> Stack:
    torch.manual_seed(1)
    return build_stack(variant, task="language_model", options=options, **SIZES).double().eval()  # type: ignore[arg-type]


def same_sublayers(source: nn.Module, target: nn.Module) -> None:
    state = target.state_dict()
    shared = {name: x for name, x in source.state_dict().items() if name in state and "connection" not in name}
    target.load_state_dict(state | shared)


def embeddings() -> Tensor:
    return torch.randn(5, 2, 16, generator=torch.Generator().manual_seed(3), dtype=torch.double)


@torch.no_grad()
@pytest.mark.parametrize(
    ("variant", "options", "other", "near"),
    [
        # of every norm of the stream there is the eps alone between the two
        ("residual_gate", {}, "peri_ln", 1e-5),
        ("identity_hc", {"start": "hy4", "close": "learned"}, "pre_ln", 2e-3),
    ],
)
def test_starts_of_wirings_with_norms_of_rms(variant: str, options: dict[str, str], other: str, near: float) -> None:
    plain, ours = language_model(other, norm_type="rms"), language_model(variant, norm_type="rms", **options)
    same_sublayers(plain, ours)
    expected = plain(embeddings())
    assert (ours(embeddings()) - expected).abs().max() <= near * expected.abs().max()


@torch.no_grad()
@pytest.mark.parametrize(
    ("variant", "options"), [("identity_hc", {"start": "hy4", "close": "learned"}), ("mhc", {}), ("mhc", {"n": 3})]
)
def test_routers_whose_matrices_are_zero_leave_pre_ln(variant: str, options: dict[str, str]) -> None:
    plain, ours = language_model("pre_ln", norm_type="rms"), language_model(variant, norm_type="rms", **options)
    same_sublayers(plain, ours)
    matrices = [p for name, p in ours.named_parameters() if name.endswith("logits.weight")]
    assert len(matrices) == 2 * len(ours) + ("close" in options)
    for matrix in matrices:
        matrix.zero_()
    expected = plain(embeddings())
    assert (ours(embeddings()) - expected).abs().max() <= 1e-5 * expected.abs().max()


@torch.no_grad()
@pytest.mark.parametrize(("variant", "other"), [("residual_gate", "muse"), ("gated_residual", "qwen")])
def test_the_released_start_is_another(variant: str, other: str) -> None:
    ours, released = language_model(variant, norm_type="rms"), language_model(variant, norm_type="rms", start=other)
    same_sublayers(ours, released)
    assert (ours(embeddings()) - released(embeddings())).abs().max() > 1e-2


@torch.no_grad()
def test_a_pair_with_a_layer_left_out_adds_no_shortcut() -> None:
    """Of the first of its layers, which computes it, or of the second, which adds it."""
    stack, x = language_model("scmoe"), embeddings()
    for left_out in (0, 1):
        s = stack.wiring.open(x)
        for i in range(len(stack)):
            for kind in () if i == left_out else stack[i].kinds:
                connection = getattr(stack[i], CONNECTIONS[kind])
                s, _ = connection(s, lambda h, s: (0 * h, None, s))
            s = stack.wiring.after_layer(i, s)
        shortcut = stack[2].ffn_connection
        added = shortcut.shortcut_out(shortcut.shortcut_in(shortcut.norm(x)).relu())
        torch.testing.assert_close(s["x"], x + added)


@torch.no_grad()
def test_squares_of_shares_add_up_to_one_but_for_the_floor() -> None:
    connection = language_model("residual_gate")[0].self_attn_connection
    connection.gate.copy_(torch.linspace(-3, 3, 16))
    one, zero = torch.ones(1, 1, 16, dtype=torch.double), torch.zeros(1, 1, 16, dtype=torch.double)
    a, b = connection.write({"x": one}, zero)["x"], connection.write({"x": zero}, one)["x"]
    floored = (a.square() + b.square() - 1).abs() > 1e-9
    assert floored.flatten().tolist() == [False] * 14 + [True] * 2
    assert torch.allclose(a[floored].square(), torch.tensor(1e-3, dtype=torch.double))


@pytest.mark.parametrize(
    ("variant", "options", "depth", "message"),
    [
        ("scmoe", {}, 3, "it wires layers in pairs, and 3 is no even number of layers"),
        ("frac_connections", {"m": 3}, 4, "option m=3 of wiring 'frac_connections' must divide the 16 channels"),
        ("attention_residuals", {"heads": 3}, 4, "option heads=3 of wiring 'attention_residuals' must divide the 16"),
    ],
)
def test_what_has_no_meaning_is_refused(variant: str, options: dict[str, int], depth: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_stack(variant, task="language_model", options=options, **SIZES | {"depth": depth})  # type: ignore[arg-type]


def test_constants_of_deep_loop() -> None:
    """Of a stack alone: (2 N)^(1/2) and (8 N)^(-1/2), N the layers times the loops."""
    shape = StackShape("decoder", 6, 16, 32, 2, 0, 6, cross=False)
    assert alpha_beta(shape, 0.5, 3) == (36**0.5, 144**-0.5)
    stack = build_stack("deepnet", task="language_model", options={"exponent": 0.5, "loops": 8}, **SIZES)  # type: ignore[arg-type]
    assert stack[0].self_attn_connection.alpha == 8.0

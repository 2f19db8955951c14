"""Sums that wait for a norm: the same numbers in every wiring, and one op for residual, dropout and norm."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from test_contract import gradients
from tiny import batch, build, logits, perturb, stacks
from torch import Tensor, nn

from fairseq_residuals.core.registry import VARIANTS
from fairseq_residuals.ops.residual_norm import Norm, Summands, residual_norm, residual_sum
from fairseq_residuals.performance import fused_activation, fused_kernels, waiting_sums
from fairseq_residuals.performance.waiting_sums import WaitingSum

TASK = "translation"


@pytest.fixture(autouse=True)
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which ops ran; without a GPU they are their references."""
    ops: list[str] = []
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # tests of kernels have set it

    def count_sum(summands: Summands) -> Tensor:
        ops.append("sum")
        return residual_sum(summands)

    def count_norm(summands: Summands, norm: Norm) -> tuple[Tensor, Tensor]:
        ops.append("norm")
        return residual_norm(summands, norm)

    monkeypatch.setattr(waiting_sums, "residual_sum", count_sum)
    monkeypatch.setattr(waiting_sums, "residual_norm", count_norm)
    for module in (waiting_sums, fused_activation):
        monkeypatch.setattr(module, "kernels_run_on", lambda *tensors: True)
    return ops


def attached(model: nn.Module) -> nn.Module:
    """A copy of a model, with everything attached; its norms are known after the first pass."""
    fused = copy.deepcopy(model)
    fused_kernels.attach(fused)
    return fused


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_every_wiring_computes_the_same(variant: str, computed: list[str]) -> None:
    # in double precision, so that gradients which nearly cancel can be compared too
    model, inputs = perturb(build(TASK, variant)).double().train(), batch(TASK)
    fused = attached(model)
    expected = gradients(model, TASK, inputs)
    assert not computed
    for _ in range(2):
        found = gradients(fused, TASK, inputs)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            # no gradient reaches the bias of keys but rounding
            scale = expected[re.sub(r"(k_proj|k_norm)\.bias$", r"\1.weight", name)].abs().max().item()
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-5 * scale, msg=name)
    # attention's softmax is in single precision
    torch.testing.assert_close(logits(fused, TASK, inputs), logits(model, TASK, inputs), rtol=1e-5, atol=1e-5)
    assert list(fused.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("variant", ("post_ln", "pre_ln", "deepnet", "admin", "b2t", "dlcl_pre", "sandwich_ln"))
def test_sums_are_computed_with_their_norms(variant: str, computed: list[str]) -> None:
    """Of each of 10 sub-layers: its own norm, that of the next one, or that on top of the stack."""
    fused, inputs = attached(perturb(build(TASK, variant))), batch(TASK)
    logits(fused, TASK, inputs)
    computed.clear()
    logits(fused, TASK, inputs)
    assert computed == ["norm"] * 10


def test_a_branch_that_is_used_twice_has_one_mask(computed: list[str]) -> None:
    """ResiDual adds it to two streams, one of them normalized with it."""
    layer = stacks(attached(build(TASK, "resi_dual", "--dropout", "0.4")).train())[0][0]
    connection, y = layer.self_attn_connection, torch.randn(3, 2, 16)
    s = {"x": torch.randn(3, 2, 16), "dual": torch.randn(3, 2, 16)}
    written = connection.write(s, layer.dropout_module(y))
    branch = written["dual"] - s["dual"]
    dropped = branch.abs() < 1e-6
    assert 0.1 < dropped.float().mean() < 0.7
    torch.testing.assert_close(branch[~dropped], (y / 0.6)[~dropped], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(written["x"], connection.norm.forward.forward(s["x"] + branch), rtol=1e-5, atol=1e-5)
    assert computed == ["norm", "sum"]


def test_dropout_is_that_of_the_generators_seed() -> None:
    fused, inputs = attached(build(TASK, "pre_ln", "--dropout", "0.3")).train(), batch(TASK)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(logits(fused, TASK, inputs).sum().item())
    assert losses[0] == losses[1] != losses[2]
    fused.eval()
    assert torch.equal(logits(fused, TASK, inputs), logits(fused, TASK, inputs))


def test_a_stream_that_was_changed_is_normalized_anew(computed: list[str]) -> None:
    fused, inputs = attached(perturb(build(TASK, "pre_ln"))), batch(TASK)
    logits(fused, TASK, inputs)
    stack = stacks(fused)[0]
    write, norm = stack[0].self_attn_connection.write, stack[0].ffn_connection.norm
    with torch.no_grad():
        x = write({"x": torch.randn(3, 2, 16)}, stack[0].dropout_module(torch.randn(3, 2, 16)))["x"]
        x.mul_(2).add_(1)
        torch.testing.assert_close(norm(x), norm.forward.forward(x.clone()))


@pytest.mark.parametrize(
    "use",
    (
        lambda x: x - 1.0,
        lambda x: 2.0 - x,
        lambda x: x / 2,
        lambda x: -x + 0.5 * x * 3,
        lambda x: x[0] @ torch.ones(4, 2),
        lambda x: torch.cat([x, x], -1),
        lambda x: x.to(torch.float64).sum(),
        lambda x: torch.ones(4) * x + torch.ones(3, 2, 1),
        lambda x: torch.nn.functional.linear(x, torch.ones(5, 4)),
        lambda x: torch.nn.functional.layer_norm(x * 2.0, (4,)),
        lambda x: torch.nn.functional.rms_norm(x, (4,)),
        lambda x: x.dtype,
        lambda x: x.size(-1),
    ),
)
@pytest.mark.parametrize("y_is_missing", (True, False))
def test_whatever_is_done_with_it_is_done_with_the_sum(use: Any, y_is_missing: bool) -> None:
    x, y = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    found = use(WaitingSum(x, None if y_is_missing else y, alpha=1.5))
    found = found.settle() if isinstance(found, WaitingSum) else found
    expected = use(1.5 * x if y_is_missing else 1.5 * x + y)
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected


def test_models_with_hooks_are_left_alone(computed: list[str]) -> None:
    model, inputs = perturb(build(TASK, "post_ln")), batch(TASK)
    for stack in stacks(model):
        stack[1].ffn_connection.norm.register_forward_hook(lambda module, inputs, out: None)
    fused_kernels.attach(model)
    logits(model, TASK, inputs)
    assert not computed


def test_attaching_twice_is_attaching_once(computed: list[str]) -> None:
    fused, inputs = attached(perturb(build(TASK, "pre_ln"))), batch(TASK)
    expected = logits(fused, TASK, inputs)
    fused_kernels.attach(fused)
    computed.clear()
    torch.testing.assert_close(logits(fused, TASK, inputs), expected)
    assert computed == ["norm"] * 10

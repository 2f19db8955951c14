"""Queries, keys and values in one product, and all keys and values of a memory: how many there are, and the numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from packed_reference import instead_of_the_kernel
from test_contract import gradients
from test_packed import assert_same, sample_of, shape_of, step
from tiny import PAD, batch, build, logits, perturb
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fairseq_residuals.core.registry import VARIANTS
from fairseq_residuals.performance import joint_products
from fairseq_residuals.training.packed_batches import pack_batch

TASK = "translation"
JOINED = ("q_proj", "k_proj", "v_proj")


class Products(TorchFunctionMode):
    """The widths of all products of a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            self.widths.append(len(args[1]))
        return func(*args, **(kwargs or {}))


@contextmanager
def products() -> Iterator[list[int]]:
    with Products() as seen:
        yield seen.widths


def joined(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model)
    joint_products.attach(twin)
    return twin


def assert_same_gradients(model: nn.Module, twin: nn.Module, inputs: dict[str, Tensor]) -> None:
    expected, found = gradients(model, TASK, inputs), gradients(twin, TASK, inputs)
    assert found.keys() == expected.keys()
    # no gradient reaches the biases of keys and of their norms but rounding
    scale = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6 * scale, msg=name)


@pytest.mark.parametrize("variant", ("post_ln", "realformer", "normformer", "mudd", "mhc", "attention_residuals"))
@pytest.mark.parametrize("training", (True, False))
def test_the_same_numbers(variant: str, training: bool) -> None:
    """Of wirings whose attention is open too, and of one whose queries, keys and values are made of unlike things."""
    model, inputs = perturb(build(TASK, variant)).double().train(training), batch(TASK)
    twin = joined(model)
    assert_same_gradients(model, twin, inputs)
    torch.testing.assert_close(logits(twin, TASK, inputs), logits(model, TASK, inputs), rtol=1e-5, atol=1e-5)
    assert list(twin.state_dict()) == list(model.state_dict())


def test_there_are_fewer_products() -> None:
    """Two layers of 16 channels: one product for each self-attention, and one of the memory for all cross-attention."""
    twin, inputs = joined(perturb(build(TASK, "post_ln"))).train(), batch(TASK)
    for _ in range(2):
        with products() as widths:
            logits(twin, TASK, inputs)
        assert widths.count(3 * 16) == 4 and widths.count(4 * 16) == 1
        # queries of cross-attention, outputs of attention, and second matrices of FFNs
        assert widths.count(16) == 2 + 6 + 4


def test_nothing_is_kept_of_a_batch() -> None:
    twin, inputs = joined(perturb(build(TASK, "post_ln"))).train(), batch(TASK)
    gradients(twin, TASK, inputs)
    joints = {
        id(m.forward.func.__self__): m.forward.func.__self__
        for name, m in twin.named_modules()
        if name.endswith(JOINED) and "forward" in vars(m)
    }
    assert len(joints) == 5 and all(joint.fed is None and not joint.products for joint in joints.values())


def test_inputs_that_differ_are_multiplied_one_by_one() -> None:
    linears = [nn.Linear(4, 3) for _ in range(2)]
    joint = joint_products.JointProduct(linears)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    for _ in range(2):
        assert torch.equal(joint.of(0, x), F.linear(x, linears[0].weight, linears[0].bias)) or joint.serves
        torch.testing.assert_close(joint.of(1, y), linears[1](y))
    assert not joint.serves and joint.fed is None
    with products() as widths:
        joint.of(0, x)
    assert widths == [3]


def test_padding_on_the_left_and_masks() -> None:
    """A query that may see padding alone has some weights, and no number is missing."""
    padding, future = torch.tensor([[True, False, False]]), torch.full((3, 3), -torch.inf).triu(1)
    mask = joint_products._mask(future, padding, torch.zeros(3, 1, 4))
    assert mask is not None
    weights = mask.softmax(-1)[0, 0]
    torch.testing.assert_close(weights, torch.tensor([[1 / 3] * 3, [0, 1, 0], [0, 0.5, 0.5]]))
    assert joint_products._mask(None, None, torch.zeros(3, 1, 4)) is None


def test_layers_that_are_dropped_multiply_memory_by_themselves() -> None:
    twin = joined(build(TASK, "post_ln", "--decoder-layerdrop", "0.5"))
    own = [m for name, m in twin.named_modules() if "encoder_attn" in name and name.endswith(JOINED)]
    assert own and not any("forward" in vars(m) for m in own)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_joint_products_of_packed_rows(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel for packed rows: fewer products, and the numbers of the padded batch."""
    instead_of_the_kernel(monkeypatch)
    model, padded = perturb(build("translation", variant, "--packed")).train(), sample_of("translation")
    rows = pack_batch(padded, PAD, shape_of(padded))
    expected = step(model, padded)
    with products() as one_by_one:
        step(model, rows)
    joint_products.attach(model)
    step(model, rows)  # what turns out to be fed different things is multiplied one by one from then on
    with products() as widths:
        found = step(model, rows)
    assert_same(found, expected)
    # of 16 channels: of two layers on each side, of which MUDD's decoder has queries, keys and values of unlike things
    layers = 2 if variant == "mudd" else 4
    assert widths.count(3 * 16) - one_by_one.count(3 * 16) >= layers
    assert len(one_by_one) - len(widths) >= 2 * layers

"""Weights over depth: found in every wiring that has them, with the softmax that it takes, masked as in the paper."""

from __future__ import annotations

import math

import pytest
import torch
from analysed_models import TINY, built, subject

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.look.weights import depth_weights, masked
from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.registry import VARIANTS

NAN = math.nan


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_wiring_has_weights_where_it_says_so(variant: str) -> None:
    """Those that override Variant.depth_weights have a matrix for a stack, and no others have one."""
    weights = depth_weights(subject(variant + "/dlcl=true" * hasattr(VARIANTS[variant].Config, "dlcl")).model)
    assert bool(weights) == (VARIANTS[variant].depth_weights is not Variant.depth_weights)
    for _, matrix in weights:
        assert matrix.name and matrix.matrix.dim() == 2 and not matrix.matrix.isnan().all()


def test_which_stacks_have_some() -> None:
    both, one = ["encoder", "decoder"], ["encoder"]
    assert [stack for stack, _ in depth_weights(subject("dlcl_pre").model)] == both
    assert [stack for stack, _ in depth_weights(subject("transparent_attention").model)] == one


def test_dlcl() -> None:
    model = subject("dlcl_post").model
    weight = model.encoder.layers.wiring.weight
    values = torch.arange(1.0, 17.0).view(4, 4)
    with torch.no_grad():
        weight.copy_(values.unsqueeze(-1))
    found = depth_weights(model)[0][1]
    assert torch.equal(found.matrix.nan_to_num(), values.tril())
    assert torch.equal(found.matrix.isnan(), torch.ones(4, 4).triu(1).bool())
    assert (found.first_row, found.first_column, found.rows) == (1, 0, "into layer")


def test_a_weight_per_channel_is_told_by_its_mean() -> None:
    model = subject("dlcl_pre/weight_type=vector").model
    with torch.no_grad():
        model.decoder.layers.wiring.weight[2, 1] = torch.arange(16.0)
    assert depth_weights(model)[1][1].matrix[2, 1] == 7.5


def test_softmax_and_window() -> None:
    model = subject("dlcl_pre/softmax=true,window=2").model
    with torch.no_grad():
        model.encoder.layers.wiring.weight[3, :, 0] = torch.tensor([9.0, 9.0, 0.0, math.log(3)])
    matrix = depth_weights(model)[0][1].matrix
    assert matrix[3].tolist()[2:] == pytest.approx([0.25, 0.75])
    assert matrix[3].isnan().tolist() == [True, True, False, False]


def test_dense_former() -> None:
    """Three layers: after the second and no other, outputs 0 and 2 are summed."""
    model = subject("dense_former/dilation=2,period=2").model
    with torch.no_grad():
        model.encoder.layers.wiring.weights["2"].copy_(torch.tensor([0.25, 0.5]))
    found = depth_weights(model)[0][1]
    expected = torch.tensor([[1, NAN, NAN, NAN], [NAN, 1, NAN, NAN], [0.25, NAN, 0.5, NAN], [NAN, NAN, NAN, 1]])
    assert torch.equal(found.matrix.nan_to_num(-1), expected.nan_to_num(-1))
    assert (found.first_row, found.rows) == (1, "into layer")


def test_transparent_attention() -> None:
    model = subject("transparent_attention", "--layers", "3-2", *TINY[2:]).model
    with torch.no_grad():
        model.encoder.layers.wiring.weight[2, 1] = math.log(3)
    found = depth_weights(model)[0][1]
    assert found.matrix.shape == (2, 4)
    assert found.matrix[0].tolist() == pytest.approx([0.25] * 4)
    assert found.matrix[1].tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 2, 1 / 6])


def test_segments() -> None:
    found = depth_weights(built("dlcl_pre:0-1,post_ln:2-2")[0])
    assert [(stack, tuple(w.matrix.shape)) for stack, w in found] == [("encoder", (3, 3)), ("decoder", (3, 3))]
    above = depth_weights(built("post_ln:0-0,dlcl_pre:1-2")[0])[0][1]
    assert (above.first_row, above.first_column) == (2, 1)
    memories = depth_weights(built("post_ln:0-0,transparent_attention:1-2")[0])[0][1]
    assert (memories.first_row, memories.first_column) == (1, 1), "rows count the decoder's layers"


def test_masked_as_in_the_paper() -> None:
    """Less than 0.1, or than 5% of the largest of the row, in magnitude."""
    matrix = torch.tensor([[0.09, -0.2, NAN], [4.0, 0.15, -0.25]])
    assert masked(matrix).isnan().tolist() == [[True, False, True], [False, True, False]]


@pytest.mark.parametrize("variant", ["attention_residuals", "unet_skip"])
def test_a_wiring_that_mixes_otherwise_is_not_said_to_have_no_weights(
    variant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has them, but for no pair of layers one that stays."""
    layers = subject(variant).model.encoder.layers
    assert any("query" in name or "skip_weight" in name for name, _ in layers.named_parameters())
    assert main(["weights", "--variants", variant, *TINY]) == 2
    message = capsys.readouterr().err
    assert "has no weights over depth" not in message
    assert "no matrix of weights over depth to draw" in message
    assert "dlcl_post, dlcl_pre, ode_rk2, ode_rk4, transparent_attention (ode: with dlcl=true)\n" in message
    assert "are dense_former, dlcl_post" in message

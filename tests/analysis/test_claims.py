"""The papers' claims that need no training, at the papers' own set-ups."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
import torch
from analysed_models import B2T_FIGURE_3, RESIDUAL_FIGURE_2, subject
from torch import Tensor

from fairseq_residuals.lab.look import change, gradients
from fairseq_residuals.lab.look.condition import Adam, condition_numbers
from fairseq_residuals.lab.look.gradients import PointInLayer
from fairseq_residuals.lab.look.output import ByLayer


@cache
def measured_18(variant: str) -> tuple[ByLayer, list[PointInLayer]]:
    """Gradient norms of layers and of the points inside of them."""
    analysed = subject(variant, *B2T_FIGURE_3)
    return gradients.parameter_gradients(analysed), gradients.parts(analysed)


def gradients_18(variant: str) -> ByLayer:
    return measured_18(variant)[0]


@cache
def measured_36(variant: str) -> tuple[ByLayer, ByLayer]:
    """Gradient norms and changes."""
    analysed = subject(variant, *RESIDUAL_FIGURE_2)
    return gradients.parameter_gradients(analysed), change.change(analysed)


def slope_per_layer(values: list[float]) -> float:
    """Of the logarithm."""
    return np.polyfit(range(len(values)), np.log(values), 1)[0]


def test_gradients_of_post_ln_decay_towards_the_bottom_of_the_decoder() -> None:
    """B2T, Figure 3 (b): exponentially."""
    norms = gradients_18("post_ln")["decoder"]
    assert norms[0] < norms[-1] / 10
    assert np.corrcoef(range(18), np.log(norms))[0, 1] > 0.98


@pytest.mark.parametrize("variant", ["pre_ln", "b2t"])
def test_gradients_of_the_others_do_not(variant: str) -> None:
    norms = gradients_18(variant)["decoder"]
    assert min(norms) > max(norms) / 3
    # B2T mitigates: what is left of the decay is a fraction of Post-LN's
    assert slope_per_layer(norms) < slope_per_layer(gradients_18("post_ln")["decoder"]) / 4


def test_gradients_of_higher_layers_of_pre_ln_are_smaller() -> None:
    """B2T, section 4."""
    for norms in gradients_18("pre_ln").values():
        assert norms[-1] < norms[0] and slope_per_layer(norms) < 0


def test_inside_a_post_ln_layer_gradients_drop_at_its_norms() -> None:
    """B2T, Figures 4 and 7: decoder layers 1, 9 and 18."""
    found = {(p.layer, p.point): p.norm for p in measured_18("post_ln")[1] if p.stack == "decoder"}
    for layer in (1, 9, 18):
        across_norms, elsewhere = [], []
        below = "layer input"
        for name in ("self-attention", "cross-attention", "FFN"):
            across_norms.append(found[layer, f"sum {name}"] / found[layer, f"norm {name}"])
            elsewhere.append(found[layer, below] / found[layer, f"sum {name}"])
            below = f"norm {name}"
        assert all(ratio < 1 for ratio in across_norms)
        assert across_norms[0] < 0.9 and across_norms[1] < 0.9
        assert all(ratio > 0.99 for ratio in elsewhere)


def test_gradients_of_36_layers() -> None:
    """ResiDual, Figure 2 (a)."""
    bottom_to_top = {}
    for variant in ("post_ln", "pre_ln", "resi_dual"):
        norms = measured_36(variant)[0]["decoder"]
        bottom_to_top[variant] = norms[0] / norms[-1]
    assert bottom_to_top["post_ln"] < 0.01
    assert bottom_to_top["pre_ln"] > 1
    assert bottom_to_top["resi_dual"] > 0.1


def log_log_slope(values: list[float]) -> float:
    """Above the bottom layers, where the embedding still makes up much of the sum."""
    k = np.arange(1, len(values) + 1)
    return np.polyfit(np.log(k[5:]), np.log(values[5:]), 1)[0]


def test_change_of_pre_ln_falls_with_the_root_of_depth() -> None:
    """ResiDual, Figure 2 (b) and section 3.2, in the decoder: c / sqrt(k + k0), so that 1 / change^2 is linear in k."""
    _, changes = measured_36("pre_ln")
    assert log_log_slope(changes["decoder"]) == pytest.approx(-0.5, abs=0.1)
    assert np.corrcoef(range(35), [1 / c**2 for c in changes["decoder"]])[0, 1] > 0.97
    # in the encoder attention adds less to the embedding, and the root shows further up
    assert np.mean(changes["encoder"][:5]) > 1.5 * np.mean(changes["encoder"][-5:])


@pytest.mark.parametrize("variant", ["post_ln", "resi_dual"])
def test_change_of_the_others_does_not(variant: str) -> None:
    for changes in measured_36(variant)[1].values():
        assert abs(log_log_slope(changes)) < 0.1


SIGMAS = [i * 1e-8 for i in range(11)]


def test_adams_condition_number_starts_at_its_bound_and_stays_high() -> None:
    """ResiDual, Figure 3: lr 1e-4, eps 1e-6, 1024 parameters."""
    numbers = {sigma: condition_numbers(Adam(), sigma, 20, seed=1) for sigma in SIGMAS}
    assert numbers[0.0][0] == pytest.approx(1e-4 * math.sqrt(1024) / 1e-6) == pytest.approx(3200)
    assert all(2700 < values[0] <= 3200.001 and values[-1] > 300 for values in numbers.values())
    assert all(later < earlier for values in numbers.values() for earlier, later in itertools.pairwise(values))
    assert condition_numbers(Adam(), 1e-4, 20, seed=1)[-1] < 10


def adam_updates(gradients: list[Tensor], lr: float, eps: float) -> Tensor:
    """What PyTorch's Adam changes at the last of these gradients."""
    parameter = torch.zeros_like(gradients[0], requires_grad=True)
    optimizer = torch.optim.Adam([parameter], lr=lr, eps=eps, betas=(0.9, 0.98))
    for gradient in gradients:
        before, parameter.grad = parameter.detach().clone(), gradient
        optimizer.step()
    return before - parameter.detach()


@pytest.mark.parametrize("sigma", [1e-7, 1e-5])
def test_the_derivative_is_that_of_pytorchs_adam(sigma: float) -> None:
    generator = torch.Generator().manual_seed(3)
    draws = [sigma * torch.randn(50, dtype=torch.float64, generator=generator) for _ in range(5)]
    ours = Adam(dim=50)
    derivatives = [ours.update(g) for g in draws]
    for step in (1, 2, 5):
        h = 1e-4 * sigma
        up, down = (adam_updates([*draws[: step - 1], draws[step - 1] + d], 1e-4, 1e-6) for d in (h, -h))
        assert torch.allclose(derivatives[step - 1], (up - down) / (2 * h), rtol=1e-4, atol=1e-4)

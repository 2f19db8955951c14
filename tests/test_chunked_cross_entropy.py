"""The loss in chunks is fairseq's, and so are its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from torch import Tensor, nn

import fairseq_residuals.plugin.training.chunked_cross_entropy as module
from fairseq_residuals.plugin.training.chunked_cross_entropy import Sums, chunked_cross_entropy, loss_and_gradients

N, C, V = 23, 8, 31


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    features, weight = torch.randn(N, C, generator=draw), torch.randn(V, C, generator=draw)
    target = torch.randint(V, (N,), generator=draw)
    return features.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), target


def fairseqs(features: Tensor, weight: Tensor, target: Tensor, epsilon: float) -> Sums:
    scores = features @ weight.t()
    loss, nll = label_smoothed_nll_loss(scores.log_softmax(-1), target, epsilon)
    return Sums(loss.sum(), nll.sum(), scores.argmax(-1).eq(target).sum())


@pytest.mark.parametrize(("dtype", "tolerance"), ((torch.bfloat16, 2e-2), (torch.float16, 2e-3)), ids=str)
def test_in_half_precision(dtype: torch.dtype, tolerance: float) -> None:
    features, weight, target = inputs(dtype)
    (1024 * chunked_cross_entropy(features, weight, target, 0.0).loss).backward()
    for ours, exact in zip((features.grad, weight.grad), exact_gradients(features, weight, target), strict=True):
        assert (ours.double() - exact).abs().max() < tolerance * exact.abs().max()


def test_without_gradients_none_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "addmm_", lambda *args: made.append(args))
    monkeypatch.setattr(torch, "mm", lambda *args, **kwargs: made.append(args))
    features, weight, target = inputs(torch.float32)
    with torch.no_grad():
        found = chunked_cross_entropy(features, weight, target, 0.1).loss
    assert not made
    whole = chunked_cross_entropy(features, weight, target, 0.1).loss
    assert made and found == whole


def test_gradients_can_be_had_once() -> None:
    loss = chunked_cross_entropy(*inputs(torch.float32), 0.1).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


def test_a_gradient_that_only_the_loss_scale_lifts_into_fp16() -> None:
    features, weight, target = inputs(torch.float16)
    with torch.no_grad():
        weight.mul_(0.25)
        weight[target[0]] = 0
        weight[target[0], 0] = 4
        features[0] = 0
        features[0, 0] = 4
    (2.0**15 * chunked_cross_entropy(features, weight, target, 0.0).loss).backward()
    exact = 2.0**15 * exact_gradients(features, weight, target)[0][0] / 1024
    assert exact[1:].abs().max() < 2.0**15 * 1e-6
    assert (features.grad[0].double() - exact)[1:].abs().max() < 0.05 * exact[1:].abs().max()


def exact_gradients(features: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Of 1024 times the loss without smoothing."""
    again, matrix = features.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    return torch.autograd.grad(
        1024 * nn.functional.cross_entropy(again @ matrix.t(), target, reduction="sum"), (again, matrix)
    )


@pytest.mark.parametrize("epsilon", (0.0, 0.1))
@pytest.mark.parametrize("chunk", (1, 3, N, 100))
@pytest.mark.parametrize("positions", (0, 1, 7, N))
@pytest.mark.parametrize("layout", ("contiguous", "strided", "expanded"))
def test_is_fairseqs(monkeypatch: pytest.MonkeyPatch, layout: str, positions: int, chunk: int, epsilon: float) -> None:
    """In chunks, the last of which may be shorter; fairseq's in double precision."""
    monkeypatch.setattr(module, "SCORES_AT_A_TIME", chunk * V)
    results = []
    for loss, dtype in ((chunked_cross_entropy, torch.float32), (fairseqs, torch.float64)):
        features, weight, target = inputs(dtype)
        x, w, y = features[:positions], weight, target[:positions]
        if layout == "strided":
            x, w = x.t().contiguous().t(), w.t().contiguous().t()
        elif layout == "expanded":
            x, y = features[:1].expand(positions, -1), target[:1].expand(positions)
        sums = loss(x, w, y, epsilon, **({} if loss is fairseqs else {"count_correct": True}))
        gradients = torch.autograd.grad(-2 * sums.loss, (features, weight))
        assert not torch.is_grad_enabled() or sums.loss.requires_grad
        assert sums.correct > 0 or positions < N or layout == "expanded"
        results.append([*(value.detach().double() for value in sums), *(gradient.double() for gradient in gradients)])
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("which", (0, 1))
def test_one_gradient_alone(which: int) -> None:
    """The other is not computed."""
    features, weight, target = inputs(torch.float32)
    (features, weight)[1 - which].requires_grad_(False)
    wanted = (features, weight)[which]
    (gradient,) = torch.autograd.grad(chunked_cross_entropy(features, weight, target, 0.1).loss, wanted)
    (expected,) = torch.autograd.grad(fairseqs(features, weight, target, 0.1).loss, wanted)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)
    both = loss_and_gradients(
        features, weight, target, 0.1, count_correct=False, need=(features.requires_grad, weight.requires_grad)
    )
    assert (both.grad_features is None, both.grad_weight is None) == (which == 1, which == 0)


def test_one_projection_for_two_losses() -> None:
    features, weight, target = inputs(torch.float32)
    found, expected = (
        torch.autograd.grad(
            loss(features, weight, target, 0.1).loss + loss(features.tanh(), weight, target, 0.1).loss,
            (features, weight),
        )
        for loss in (chunked_cross_entropy, fairseqs)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("epsilon", (0.0, 0.1))
def test_padding_counts_as_left_out(epsilon: float) -> None:
    features, weight, target = inputs(torch.float32)
    padding = torch.arange(N) % 3 == 0
    padded = loss_and_gradients(features, weight, target, epsilon, count_correct=True, padding=padding)
    plain = loss_and_gradients(features[~padding], weight, target[~padding], epsilon, count_correct=True)
    torch.testing.assert_close(padded.sums, plain.sums)
    assert padded.grad_features is not None and padded.grad_features[padding].eq(0).all()
    torch.testing.assert_close(padded.grad_features[~padding], plain.grad_features)
    torch.testing.assert_close(padded.grad_weight, plain.grad_weight)

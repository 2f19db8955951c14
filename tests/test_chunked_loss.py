"""The loss in chunks is fairseq's, and so are its gradients."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.criterions import build_criterion
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.distributed.module_proxy_wrapper import ModuleProxyWrapper
from tiny import PAD, TASKS, batch, build, perturb, target_tokens
from tiny_trainer import SGD, Task, make_config, make_trainer, sample, update
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.ops import chunked_cross_entropy
from fairseq_residuals.training.criterions.chunked_label_smoothed_cross_entropy import ChunkedLabelSmoothedCrossEntropy

N, C, V = 23, 8, 31


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    features, weight = torch.randn(N, C, generator=draw), torch.randn(V, C, generator=draw)
    target = torch.randint(V, (N,), generator=draw)
    return features.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), target


@pytest.mark.parametrize("epsilon", (0.0, 0.1))
@pytest.mark.parametrize("positions", (1, 5, N, 100))
def test_in_double_precision(monkeypatch: pytest.MonkeyPatch, epsilon: float, positions: int) -> None:
    """Whatever the size of the chunks; the sums are in single precision."""
    monkeypatch.setattr(chunked_cross_entropy, "SCORES_AT_A_TIME", positions * V)
    features, weight, target = inputs(torch.float32)
    sums = chunked_cross_entropy.chunked_loss(features, weight, target, epsilon, count=True)
    (3 * sums.loss).backward()
    found = (sums.loss, sums.nll, features.grad, weight.grad)
    features, weight, target = inputs(torch.float64)
    scores = features @ weight.t()
    loss, nll = label_smoothed_nll_loss(scores.log_softmax(-1), target, epsilon)
    (3 * loss.sum()).backward()
    for ours, fairseqs in zip(found, (loss.sum(), nll.sum(), features.grad, weight.grad), strict=True):
        torch.testing.assert_close(ours.double(), fairseqs, rtol=1e-5, atol=1e-5)
    assert sums.correct == scores.argmax(-1).eq(target).sum() > 0


@pytest.mark.parametrize(("dtype", "tolerance"), ((torch.bfloat16, 2e-2), (torch.float16, 2e-3)), ids=str)
def test_in_half_precision(dtype: torch.dtype, tolerance: float) -> None:
    features, weight, target = inputs(dtype)
    (1024 * chunked_cross_entropy.chunked_loss(features, weight, target, 0.0).loss).backward()
    for ours, exact in zip((features.grad, weight.grad), exact_gradients(features, weight, target), strict=True):
        assert (ours.double() - exact).abs().max() < tolerance * exact.abs().max()


def test_without_gradients_none_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "addmm_", lambda *args: made.append(args))
    monkeypatch.setattr(torch, "mm", lambda *args, **kwargs: made.append(args))
    features, weight, target = inputs(torch.float32)
    with torch.no_grad():
        found = chunked_cross_entropy.chunked_loss(features, weight, target, 0.1).loss
    assert not made
    whole = chunked_cross_entropy.chunked_loss(features, weight, target, 0.1).loss
    assert made and found == whole


def test_ddp_that_looks_for_unused_parameters(tmp_path: Path) -> None:
    """It takes a projection that is not an embedding too for one; fairseq's own loss is within its forward pass."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        flags = ("--criterion", "chunked_label_smoothed_cross_entropy", *SGD)
        criterion = build_criterion(make_config(*flags).criterion, Task(None))
        for flags, refused in (((), True), (("--share-all-embeddings",), False)):
            model = build("translation", "post_ln", *flags).train()
            wrapped = ModuleProxyWrapper(DistributedDataParallel(model, find_unused_parameters=True))
            wrapped = wrapped if flags else ModuleProxyWrapper(wrapped)  # as with --heartbeat-timeout
            with pytest.raises(UserError, match="legacy_ddp") if refused else nullcontext():
                criterion(wrapped, sample())[0].backward()
    finally:
        torch.distributed.destroy_process_group()


def test_gradients_can_be_had_once() -> None:
    loss = chunked_cross_entropy.chunked_loss(*inputs(torch.float32), 0.1).loss
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
    (2.0**15 * chunked_cross_entropy.chunked_loss(features, weight, target, 0.0).loss).backward()
    exact = 2.0**15 * exact_gradients(features, weight, target)[0][0] / 1024
    assert exact[1:].abs().max() < 2.0**15 * 1e-6
    assert (features.grad[0].double() - exact)[1:].abs().max() < 0.05 * exact[1:].abs().max()


def exact_gradients(features: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Of 1024 times the loss without smoothing."""
    again, matrix = features.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    return torch.autograd.grad(
        1024 * nn.functional.cross_entropy(again @ matrix.t(), target, reduction="sum"), (again, matrix)
    )


def criterion(name: str, *flags: str) -> Any:
    cfg = make_config("--criterion", name, "--label-smoothing", "0.1", *flags)
    return build_criterion(cfg.criterion, Task(cfg.task))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("flags", ((), ("--report-accuracy", "--ignore-prefix-size", "1", "--sentence-avg")), ids=len)
def test_criterion(task: str, flags: tuple[str, ...]) -> None:
    """Padding, gradients of every parameter, and the log."""
    net_input = batch(task)
    target = target_tokens(task, net_input)
    assert target.eq(PAD).any()
    given = {"net_input": net_input, "target": target, "ntokens": int(target.ne(PAD).sum())}
    results = []
    for name in ("label_smoothed_cross_entropy", "chunked_label_smoothed_cross_entropy"):
        model = perturb(build(task, "b2t")).train()
        loss, size, logged = criterion(name, *flags)(model, given)
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append((loss, size, {k: torch.as_tensor(v).float() for k, v in logged.items()}, gradients))
    torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("precision", ((), ("--fp16", "--fp16-init-scale", "4"), ("--bf16",)), ids=str)
def test_training(precision: tuple[str, ...]) -> None:
    losses = {}
    for name in ("label_smoothed_cross_entropy", "chunked_label_smoothed_cross_entropy"):
        flags = ("--criterion", name, "--label-smoothing", "0.1", "--optimizer", "adam", "--lr", "0.01")
        trainer = make_trainer(*flags, *precision)
        losses[name] = [update(trainer, sample())["loss"] for _ in range(6)]
        valid = trainer.valid_step(sample())
        losses[name].append(float(valid["loss"]))
    fairseqs, ours = losses.values()
    assert ours == pytest.approx(fairseqs, abs=0.05 if precision else 1e-3) and ours[-2] < ours[0]


def test_a_model_with_another_output_is_refused() -> None:
    model = build("translation", "b2t")
    model.decoder.output_projection = None
    with pytest.raises(UserError, match="use --criterion label_smoothed_cross_entropy, or adaptive_loss"):
        criterion("chunked_label_smoothed_cross_entropy")(model, {})
    assert isinstance(criterion("chunked_label_smoothed_cross_entropy"), ChunkedLabelSmoothedCrossEntropy)


def test_a_projection_of_another_width_under_autocast() -> None:
    inputs = {"net_input": batch("translation"), "ntokens": 9}
    inputs["target"] = target_tokens("translation", inputs["net_input"])
    losses = []
    for name in ("label_smoothed_cross_entropy", "chunked_label_smoothed_cross_entropy"):
        model = build("translation", "b2t", "--decoder-output-dim", "8").train()
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(name)(model, inputs)[0]
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.01)

"""The schedules against their formulas; RAdam against PyTorch's and the paper's, in full and half precision."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fairseq import optim
from fairseq.optim.lr_scheduler import build_lr_scheduler
from tiny_trainer import make_config, make_trainer, sample, update
from torch import Tensor, nn

from fairseq_residuals.wirings.core.errors import UserError

RADAM = ("--optimizer", "radam", "--adam-betas", "(0.9, 0.98)", "--lr", "0.003", "--weight-decay", "0.1")
UPDATES = 9
"""Without rectification (the first five) and with it."""


def optimizer_of(*flags: str, parameters: list[nn.Parameter] | None = None) -> Any:
    return optim.build_optimizer(make_config(*flags).optimizer, parameters or [nn.Parameter(torch.ones(1))])


def schedule(*flags: str) -> tuple[Any, Any]:
    """The scheduler and the optimizer whose learning rate it sets."""
    cfg = make_config("--optimizer", "sgd", *flags)
    optimizer = optim.build_optimizer(cfg.optimizer, [nn.Parameter(torch.ones(1))])
    return build_lr_scheduler(cfg.lr_scheduler, optimizer), optimizer


LINEAR = ("--lr-scheduler", "polynomial_decay", "--lr", "0.02")
T_FIXUP = ("--lr-scheduler", "inverse_sqrt_nowarmup", "--lr", "0.0005")


@pytest.mark.parametrize(
    ("flags", "n", "expected"),
    [
        ((), 0, 0.0005),
        ((), 12_000, 0.00025),  # sqrt(4000 / 16000) = 1/2
        ((), 32_000, 0.0005 / 3),
        (("--decay-period", "4000"), 4000, 0.0005 / math.sqrt(2)),
        (("--decay-period", "1"), 3, 0.00025),
        (("--decay-period", "9"), 7, 0.000375),  # sqrt(9 / 16) = 3/4
    ],
)
def test_t_fixup_schedule(flags: tuple[str, ...], n: int, expected: float) -> None:
    scheduler, optimizer = schedule(*T_FIXUP, *flags)
    assert optimizer.get_lr() == 0.0005
    scheduler.step_begin_epoch(1)
    assert scheduler.step_update(n) == pytest.approx(expected, rel=1e-12)
    assert optimizer.get_lr() == pytest.approx(expected, rel=1e-12)
    scheduler.step(1, val_loss=3.0)
    assert optimizer.get_lr() == pytest.approx(expected, rel=1e-12)


def test_linear_decay_without_warmup_is_fairseqs_polynomial_decay() -> None:
    """With its defaults: lr * (1 - n / T), wherever epochs begin."""
    total = 7
    scheduler, optimizer = schedule(*LINEAR, "--total-num-update", str(total))
    assert optimizer.get_lr() == 0.02
    for n in range(total + 1):
        if n in (0, 3, 5):
            scheduler.step_begin_epoch(n + 1)
        scheduler.step_update(n)
        assert optimizer.get_lr() == pytest.approx(0.02 * (1 - n / total), rel=1e-12), n
    assert optimizer.get_lr() == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((*T_FIXUP, "--decay-period", "0"), "--decay-period must be a whole number of at least 1, not 0"),
        (("--lr-scheduler", "inverse_sqrt_nowarmup", "--lr", "0.1,0.2"), "takes one --lr, not 2"),
    ],
)
def test_schedule_errors(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        schedule(*flags)


def papers_radam(x: Tensor, gradients: list[Tensor], lr: float, b1: float, b2: float, decay: float) -> list[Tensor]:
    """Liu et al. 2020, Algorithm 2, with decoupled weight decay: the iterates from ``x``.

    The paper rectifies where the length is above 4, the authors' code (in Admin's repository too) from 5 on.
    """
    m, v, path = torch.zeros_like(x), torch.zeros_like(x), []
    longest = 2 / (1 - b2) - 1
    for t, g in enumerate(gradients, start=1):
        v = b2 * v + (1 - b2) * g**2
        m = b1 * m + (1 - b1) * g
        step = m / (1 - b1**t)
        length = longest - 2 * t * b2**t / (1 - b2**t)
        if length >= 5:
            rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            step = math.sqrt(rectified) * step / (v / (1 - b2**t)).sqrt()
        x = x - lr * decay * x - lr * step
        path.append(x)
    return path


def test_radam_is_pytorchs_and_the_papers() -> None:
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    gradients = [torch.randn(2, 5, generator=generator, dtype=torch.float64) for _ in range(UPDATES)]
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = optimizer_of(*RADAM, parameters=[ours])
    reference = torch.optim.RAdam(
        [theirs], lr=0.003, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1, decoupled_weight_decay=True
    )
    for gradient, expected in zip(gradients, papers_radam(start, gradients, 0.003, 0.9, 0.98, 0.1), strict=True):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(ours.detach(), expected, rtol=1e-6, atol=1e-9)


def test_radam_takes_its_learning_rate_from_the_schedule() -> None:
    trainer = make_trainer(*RADAM, "--lr-scheduler", "inverse_sqrt_nowarmup", "--decay-period", "1")
    for n in range(3):
        assert trainer.get_lr() == pytest.approx(0.003 / math.sqrt(1 + n), rel=1e-12)
        update(trainer, sample())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--adam-betas", "(0.9, "), "is no value as Python writes it"),
        (("--adam-betas", "(0.9, 1.0)"), "Invalid beta parameter at index 1"),
        (("--weight-decay", "-1"), "weight_decay value: -1.*at least 0"),
    ],
)
def test_radam_errors(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        optimizer_of("--optimizer", "radam", "--lr", "0.1", *flags)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_radam_refuses_parameters_in_half_precision(precision: str) -> None:
    trainer = make_trainer(*RADAM, f"--memory-efficient-{precision}")
    with pytest.raises(UserError, match=r"radam does not go with .*; use --fp16 or --bf16"):
        update(trainer, sample())


@pytest.mark.parametrize("precision", [("--fp16",), ("--fp16", "--fp16-no-flatten-grads"), ("--bf16",)])
def test_radam_in_half_precision_updates_an_fp32_copy(precision: tuple[str, ...]) -> None:
    """The copy is what PyTorch's RAdam makes of the gradients without the loss scale, bit for bit."""
    dtype = torch.bfloat16 if precision == ("--bf16",) else torch.float16
    generator = torch.Generator().manual_seed(3)
    starts = [torch.randn(shape, generator=generator).to(dtype) for shape in ((2, 5), (3,))]
    weights = [nn.Parameter(start.clone()) for start in starts]
    copies = [nn.Parameter(start.float()) for start in starts]
    optimizer = optim.FP16Optimizer.build_optimizer(make_config(*RADAM, *precision), weights)
    reference = torch.optim.RAdam(copies, lr=0.003, betas=(0.9, 0.98), weight_decay=0.1, decoupled_weight_decay=True)
    for _ in range(UPDATES):
        gradients = [torch.randn(w.shape, generator=generator).to(dtype) for w in weights]
        optimizer.zero_grad()
        optimizer.backward(sum((w * g).sum() for w, g in zip(weights, gradients, strict=True)).float())
        optimizer.clip_grad_norm(0.0)
        optimizer.step()
        for copy, gradient in zip(copies, gradients, strict=True):
            copy.grad = gradient.float()
        reference.step()
        updated = torch.cat([p.detach().flatten() for p in optimizer.fp32_optimizer.params])
        assert torch.equal(updated, torch.cat([p.detach().flatten() for p in copies]))
        assert all(torch.equal(w, c.to(dtype)) for w, c in zip(weights, copies, strict=True))

"""fused_adam goes the way of fairseq's adam, and each goes on where the other has stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import optim
from tiny_trainer import make_config, make_trainer, sample, update
from torch import Tensor, nn

from fairseq_residuals.wirings.core.errors import UserError

FLAGS = ("--adam-betas", "(0.9, 0.98)", "--lr", "0.01")
UPDATES = 50


def start() -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(*shape, generator=draw)) for shape in ((3, 5), (7,), (2, 2, 2))]


def optimizer_of(name: str, parameters: list[nn.Parameter], *flags: str) -> Any:
    return optim.build_optimizer(make_config("--optimizer", name, *FLAGS, *flags).optimizer, parameters)


def go(optimizer: Any, parameters: list[nn.Parameter], updates: range) -> list[Tensor]:
    """With gradients of sizes around eps too, where its place in the denominator matters; the last parameter has a
    gradient in every third update only, as under layer dropout."""
    for number in updates:
        draw = torch.Generator().manual_seed(number)
        optimizer.set_lr(0.01 / (1 + number % 4))
        for p, size in zip(parameters, (1.0, 1e-4, 10.0), strict=True):
            p.grad = size * torch.randn(p.shape, generator=draw)
        if number % 3:
            parameters[-1].grad = None
        optimizer.step()
    return [p.detach().clone() for p in parameters]


@pytest.mark.parametrize("flags", ((), ("--weight-decay", "0.1", "--adam-eps", "1e-4")), ids=("plain", "decay"))
def test_trajectory(flags: tuple[str, ...]) -> None:
    ends = {}
    for name in ("adam", "fused_adam"):
        parameters = start()
        ends[name] = go(optimizer_of(name, parameters, *flags), parameters, range(UPDATES))
    for fairseqs, ours, origin in zip(ends["adam"], ends["fused_adam"], start(), strict=True):
        assert (fairseqs - origin).abs().min() > 1e-4
        torch.testing.assert_close(ours, fairseqs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("first", "second"), (("adam", "fused_adam"), ("fused_adam", "adam")))
def test_a_run_may_change_over(first: str, second: str) -> None:
    whole = start()
    expected = go(optimizer_of("adam", whole), whole, range(20))
    parameters = start()
    stopped = optimizer_of(first, parameters)
    go(stopped, parameters, range(10))
    resumed = optimizer_of(second, parameters)
    resumed.load_state_dict(stopped.state_dict())
    torch.testing.assert_close(go(resumed, parameters, range(10, 20)), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("change", (("adam", "fused_adam"), ("fused_adam", "adam")))
def test_the_trainer_lets_a_run_change_over(tmp_path: Path, change: tuple[str, str]) -> None:
    """And change its criterion with it, whose numbers are the same too."""
    criteria = {"adam": "label_smoothed_cross_entropy", "fused_adam": "chunked_label_smoothed_cross_entropy"}
    ends = []
    for names in ((change[0], change[0]), change):
        for name, epoch in zip(names, (1, 2), strict=True):
            trainer = make_trainer("--optimizer", name, *FLAGS, "--criterion", criteria[name])
            if epoch == 2:
                trainer.load_checkpoint(str(tmp_path / "1.pt"))
            update(trainer, sample(epoch))
            trainer.consolidate_optimizer()
            trainer.save_checkpoint(str(tmp_path / f"{epoch}.pt"), {"train_iterator": {"epoch": epoch}})
        ends.append(dict(trainer.get_model().named_parameters()))
    for name, value in ends[0].items():
        if name.endswith("k_proj.bias"):  # its gradient is zero but for rounding
            continue
        torch.testing.assert_close(ends[1][name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("precision", ((), ("--fp16",), ("--bf16",)), ids=("fp32", "fp16", "bf16"))
def test_it_trains_a_model(precision: tuple[str, ...]) -> None:
    losses = {}
    for name in ("adam", "fused_adam"):
        trainer = make_trainer("--optimizer", name, *FLAGS, "--fp16-init-scale", "4", *precision)
        losses[name] = [update(trainer, sample())["loss"] for _ in range(6)]
    assert losses["fused_adam"][-1] < losses["fused_adam"][0]
    assert losses["fused_adam"] == pytest.approx(losses["adam"], abs=0.02 if precision else 1e-3)


def test_parameters_in_half_precision_are_refused() -> None:
    with pytest.raises(UserError, match="--optimizer fused_adam does not go with --memory-efficient-fp16"):
        optimizer_of("fused_adam", [nn.Parameter(torch.ones(1, dtype=torch.float16))])


def test_moments_of_what_was_not_updated_are_not_in_the_state() -> None:
    """From the state at its start, ``--use-bmuf`` begins anew."""
    trainer = make_trainer("--optimizer", "fused_adam", "--lr", "0.01")
    inner = trainer.optimizer.optimizer
    assert inner.state and not inner.state_dict()["state"]
    update(trainer, sample())
    assert len(inner.state_dict()["state"]) == sum(p.grad is not None for p in trainer.model.parameters())


def test_moments_in_half_precision_are_refused() -> None:
    with pytest.raises(UserError, match="--fp16-adam-stats is not for --optimizer fused_adam"):
        make_trainer("--optimizer", "fused_adam", "--fp16-adam-stats", "--lr", "0.01").optimizer  # noqa: B018

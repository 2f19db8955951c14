"""A resumed run is the uninterrupted one to the last bit: losses, gradients, random state, parameters, optimizer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TASKS
from tiny_trainer import make_trainer, sample, saved, update

from fairseq_residuals.wirings.core.registry import VARIANTS
from modern_fairseq.fixes import master_weights
from tests.rotation import SHAPES_OF_CODE, rotated

BEFORE, UPDATES = 2, 4
PRECISIONS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "bf16": ("--bf16",),
    "fp16": ("--fp16", "--fp16-init-scale", "4", "--fp16-scale-window", "2"),
}
OPTIMIZERS = ("adam", "fused_adam")
IN_TURN = (*OPTIMIZERS, "radam", "radam")
"""Four, of which each meets each of three precisions."""
SCHEDULE = ("--lr", "0.01", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "2", "--clip-norm", "0.5")
DROPOUT = ("--dropout", "0.1", "--attention-dropout", "0.1")


def flags_of(precision: str, optimizer: str) -> tuple[str, ...]:
    return (*PRECISIONS[precision], "--optimizer", optimizer, *SCHEDULE, *DROPOUT)


def train(trainer: Any, numbers: range, task: str = "translation") -> list[Any]:
    """What each update logged, its gradients and the random state after it."""
    seen = []
    for number in numbers:
        logged = update(trainer, sample(number + 100 * trainer.data_parallel_rank, task=task))
        gradients = [None if p.grad is None else p.grad.clone() for p in trainer.model.parameters()]
        seen.append(({k: logged[k] for k in ("loss", "gnorm", "lr")}, gradients, torch.get_rng_state()))
    return seen


def end_of(trainer: Any) -> Any:
    return copy.deepcopy([dict(trainer.model.named_parameters()), trainer.optimizer.state_dict()])


def assert_same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def assert_resumes_exactly(variant: str, flags: tuple[str, ...], folder: Path, task: str = "translation") -> None:
    whole = make_trainer(*flags, variant=variant, task=task)
    whole.load_checkpoint(str(folder / "none.pt"))
    train(whole, range(BEFORE), task)
    path = saved(whole, folder / "a.pt", BEFORE)
    expected = train(whole, range(BEFORE, UPDATES), task)
    resumed = make_trainer(*flags, variant=variant, task=task, seed=2)
    resumed.load_checkpoint(path)
    assert_same(train(resumed, range(BEFORE, UPDATES), task), expected)
    assert_same(end_of(resumed), end_of(whole))


def tasks_of(variant: str) -> list[str]:
    """Those of the tasks that the variant has a meaning in."""
    return [task for task in TASKS if not VARIANTS[variant].refusal(alone=task == "language_modeling", topmost=True)]


# tasks, precisions and optimizers in turn
CASES = [
    (variant, tasks_of(variant)[i // 3 % len(tasks_of(variant))], precision, optimizer)
    for i, (variant, precision, optimizer) in enumerate(rotated(SHAPES_OF_CODE, [*PRECISIONS], IN_TURN))
]


@pytest.mark.parametrize(("variant", "task", "precision", "optimizer"), CASES)
def test_a_run_resumes_exactly(variant: str, task: str, precision: str, optimizer: str, tmp_path: Path) -> None:
    assert_resumes_exactly(variant, flags_of(precision, optimizer), tmp_path, task)


@pytest.mark.parametrize(
    "flags",
    [
        (*PRECISIONS["fp16"], "--fp16-no-flatten-grads"),
        ("--fp16", "--memory-efficient-fp16", *PRECISIONS["fp16"][1:]),
        ("--bf16", "--memory-efficient-bf16"),
    ],
    ids=lambda flags: flags[-1] if flags[0] == "--bf16" else flags[1],
)
def test_so_do_the_other_ways_to_half_precision(flags: tuple[str, ...], tmp_path: Path) -> None:
    assert_resumes_exactly("b2t", (*flags, "--optimizer", "adam", *SCHEDULE, *DROPOUT), tmp_path)


def saved_in_bf16(path: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    flags = flags_of("bf16", "adam")
    trainer = make_trainer(*flags)
    trainer.load_checkpoint(str(path.with_name("none.pt")))
    train(trainer, range(BEFORE))
    return flags, torch.load(saved(trainer, path, BEFORE), weights_only=False)


def single_precision(trainer: Any) -> list[torch.Tensor]:
    return [p.detach() for p in trainer.optimizer.fp32_params]


def test_a_checkpoint_without_single_precision_goes_on_from_rounded_parameters(tmp_path: Path) -> None:
    flags, state = saved_in_bf16(tmp_path / "a.pt")
    del state["last_optimizer_state"][master_weights.WEIGHTS]
    torch.save(state, tmp_path / "a.pt")
    resumed = make_trainer(*flags, seed=2)
    resumed.load_checkpoint(str(tmp_path / "a.pt"))
    assert_same(single_precision(resumed), [p.float() for p in resumed.optimizer.fp16_params])


def test_averaged_parameters_are_not_undone_by_the_weights_of_one_checkpoint(tmp_path: Path, caplog: Any) -> None:
    flags, state = saved_in_bf16(tmp_path / "a.pt")
    state["model"] = {name: value * 2 for name, value in state["model"].items()}
    torch.save(state, tmp_path / "a.pt")
    resumed = make_trainer(*flags, seed=2)
    resumed.load_checkpoint(str(tmp_path / "a.pt"))
    assert "goes on from the rounded parameters" in caplog.text
    name, parameter = next(iter(resumed.model.named_parameters()))
    assert torch.equal(parameter.float(), state["model"][name])
    assert_same(single_precision(resumed), [p.float() for p in resumed.optimizer.fp16_params])


def test_fairseq_alone_loads_such_a_checkpoint(tmp_path: Path) -> None:
    _, state = saved_in_bf16(tmp_path / "a.pt")
    stock = make_trainer("--optimizer", "adam", *SCHEDULE)
    # what FP16Optimizer.load_state_dict of fairseq 0.12.2 does with a state
    stock.optimizer.load_state_dict(state["last_optimizer_state"])
    moments = [state["last_optimizer_state"]["state"][i]["exp_avg"] for i in range(3)]
    assert_same([s["exp_avg"] for s in list(stock.optimizer.optimizer.state.values())[:3]], moments)

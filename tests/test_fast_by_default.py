"""What a run on a GPU takes without being asked, decided on a CPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_reference import instead_of_the_kernel
from reruns import instead_of_graphs
from test_exact_resume import save
from test_packed import shape_of
from tiny import PAD
from tiny_trainer import Task, make_trainer, sample, update

from fairseq_residuals.plugin.models import extensions
from fairseq_residuals.plugin.speed import cuda_graph_step, packed_forward
from fairseq_residuals.plugin.training import fast_paths, packed
from fairseq_residuals.plugin.training.fast_paths import (
    ADAM,
    GRAPHS,
    LOSS,
    ON,
    choose,
)
from fairseq_residuals.plugin.training.optim import FusedAdam
from fairseq_residuals.plugin.training.packed_batches import pack_batch
from fairseq_residuals.wirings.core.errors import UserError

SMOOTHED = ("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1")
WITH_ADAM = ("--optimizer", "adam", "--lr", "0.01", "--lr-scheduler", "fixed", "--clip-norm", "0.5")
ALL = {LOSS, ADAM, GRAPHS}
FEW_SHAPES = ("--num-batch-buckets", "8")


def trainer_of(*flags: str) -> Any:
    return make_trainer(*SMOOTHED, *WITH_ADAM, *flags, variant="b2t")


def chosen_for(trainer: Any, device: str = "cuda") -> dict[str, str]:
    return choose(trainer, extensions._complete(trainer.cfg.model), device)


@pytest.mark.parametrize(
    ("flags", "off"),
    (
        (FEW_SHAPES, set()),
        (("--packed",), set()),
        ((*FEW_SHAPES, "--criterion", "chunked_label_smoothed_cross_entropy", "--optimizer", "fused_adam"), set()),
        ((*FEW_SHAPES, "--plain"), ALL),
        (
            (*FEW_SHAPES, "--criterion", "label_smoothed_cross_entropy_with_alignment"),
            {LOSS, GRAPHS},
        ),
        ((*FEW_SHAPES, "--find-unused-parameters"), {LOSS, GRAPHS}),
        ((*FEW_SHAPES, "--optimizer", "radam"), {ADAM}),
        ((*FEW_SHAPES, "--memory-efficient-fp16", "--fp16"), {ADAM}),
        ((*FEW_SHAPES, "--amp"), {GRAPHS}),
        ((*FEW_SHAPES, "--encoder-layerdrop", "0.1"), {GRAPHS}),
        ((), {GRAPHS}),
    ),
    ids=lambda value: " ".join(sorted(value) if isinstance(value, set) else value),
)
def test_what_is_off(flags: tuple[str, ...], off: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_forward, "why_no_one_shape", lambda model, device: "")
    trainer = trainer_of(*flags)
    chosen = chosen_for(trainer)
    assert chosen.keys() == ALL
    assert {name for name, reason in chosen.items() if reason != ON} == off
    assert all(reason != ON for reason in chosen_for(trainer, "cpu").values())


def test_graphs_that_the_model_or_the_wrapper_does_not_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of("--packed")
    assert "varlen_attn" in chosen_for(trainer)[GRAPHS]
    monkeypatch.setattr(type(trainer), "data_parallel_world_size", 2)
    trainer = trainer_of(*FEW_SHAPES)
    assert "--ddp-backend legacy_ddp" in chosen_for(trainer)[GRAPHS]


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that the choice takes for a GPU."""
    instead_of_graphs(monkeypatch)
    monkeypatch.setattr(fast_paths, "device_of", lambda trainer: "cuda")


@pytest.mark.usefixtures("on_a_gpu")
def test_what_is_asked_for_is_said_to_be_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """--cuda-graphs finds the loss in chunks, which it needs, in place of fairseq's."""
    caplog.set_level("INFO")
    monkeypatch.setattr(cuda_graph_step, "refuse_unrecordable", lambda model, device: None)
    trainer = trainer_of("--cuda-graphs", *FEW_SHAPES)
    trainer.load_checkpoint("no_such_checkpoint.pt")
    assert {f"{name}: on" for name in (LOSS, ADAM, GRAPHS)} <= {r.message for r in caplog.records}
    assert trainer.get_criterion().sums.required


@pytest.mark.usefixtures("on_a_gpu")
def test_packed_batches_come_in_one_shape_for_graphs_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_the_kernel(monkeypatch)
    monkeypatch.setitem(packed.TASKS, "tiny", Task)
    losses, samples = [], [sample(seed, sentences) for seed, sentences in ((1, 3), (2, 5))]
    for more in (("--plain",), ("--packed",)):
        trainer = trainer_of(*more)
        trainer.load_checkpoint("no_such_checkpoint.pt")
        batches = [pack_batch(s, PAD, shape_of(*samples)) for s in samples] if "--packed" in more else samples
        losses.append([update(trainer, s)["loss"] for s in batches])
    assert trainer.task.load_dataset.packing == {"full": False, "one_shape": True}
    assert isinstance(trainer.get_criterion().forward, packed.CountSentences)
    (steps,) = trainer.criterion.sums.steps.values()
    assert len(steps.steps) == 1
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


BATCHES = [sample(1), sample(2, sentences=5), sample(3)]


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("flags", ((), ("--fp16", "--fp16-init-scale", "4"), ("--sentence-avg", "--report-accuracy")))
def test_it_trains_as_the_plain_run_does(flags: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    logs, states = [], []
    for more in (("--plain",), ()):
        trainer = trainer_of(*flags, *more, *FEW_SHAPES)
        trainer.load_checkpoint("no_such_checkpoint.pt")
        logs.append([update(trainer, batch) for batch in (*BATCHES, *BATCHES)])
        states.append(copy.deepcopy(trainer.optimizer.state_dict()))
        names = [f"{name}: {'off (--plain)' if more else 'on'}" for name in (LOSS, ADAM, GRAPHS)]
        assert [record.message for record in caplog.records if ": o" in record.message] == names
        caplog.clear()
    adam = trainer.optimizer.fp32_optimizer if "--fp16" in flags else trainer.optimizer
    assert type(adam._optimizer) is FusedAdam and len(trainer.criterion.sums.steps) == 1
    rounding = 2e-2 if "--fp16" in flags else 1e-4
    for plain, fast in zip(*logs, strict=True):
        assert fast.keys() == plain.keys()
        for key in plain.keys() - {"wall", "train_wall", "wps", "ups", "clip"}:
            assert fast[key] == pytest.approx(plain[key], rel=rounding), key
    plain, fast = states
    assert fast["param_groups"] == plain["param_groups"] and fast["state"].keys() == plain["state"].keys()


@pytest.mark.usefixtures("on_a_gpu")
def test_a_run_that_was_plain_goes_on_fast(tmp_path: Path) -> None:
    first = trainer_of("--plain")
    first.load_checkpoint("no_such_checkpoint.pt")
    update(first, BATCHES[0])
    path = save(first, tmp_path / "a.pt")
    expected = update(first, BATCHES[1])
    resumed = trainer_of(*FEW_SHAPES)
    resumed.load_checkpoint(path)
    assert resumed.get_num_updates() == 1
    found = update(resumed, BATCHES[1])
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    for p, q in zip(resumed.model.parameters(), first.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-3)  # Adam blows rounding up where a gradient is nothing else


@pytest.mark.usefixtures("on_a_gpu")
def test_what_cannot_be_recorded_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wait(work: object, device: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graph_step.cuda_graphs, "warm_up", wait)
    trainer = trainer_of(*FEW_SHAPES)
    trainer.load_checkpoint("no_such_checkpoint.pt")
    losses = [update(trainer, batch)["loss"] for batch in BATCHES]
    assert all(loss > 0 for loss in losses) and cuda_graph_step.records_steps(trainer.criterion)
    assert caplog.text.count("goes on without") == 1


def test_a_cpu_stays_as_it_is() -> None:
    trainer = trainer_of()
    criterion = trainer.get_criterion()
    trainer.load_checkpoint("no_such_checkpoint.pt")
    assert trainer.get_criterion() is criterion and type(trainer.optimizer._optimizer) is not FusedAdam


def test_both_are_refused() -> None:
    with pytest.raises(UserError, match="--plain leaves CUDA graphs out and --cuda-graphs asks for them"):
        trainer_of("--plain", "--cuda-graphs")

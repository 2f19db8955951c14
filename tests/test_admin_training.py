"""How the omegas get into training: fairseq's own trainer, which asks for a checkpoint before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_admin_profile import in_model
from tiny_trainer import SGD, make_trainer, sample, saved, update
from torch import Tensor

from fairseq_residuals.plugin.training.admin_profile import profile
from fairseq_residuals.wirings.admin_measurement import start_from, unprofiled

NOWHERE = "no_such_checkpoint.pt"
FLAGS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "fp16": ("--fp16", "--fp16-init-scale", "4"),
    "fp16, copies not flat": ("--fp16", "--fp16-init-scale", "4", "--fp16-no-flatten-grads"),
    "fp16, no copies": ("--memory-efficient-fp16", "--fp16-init-scale", "4", "--optimizer", "adam"),
    "bf16": ("--bf16",),
    "amp": ("--amp",),
    "bmuf": ("--use-bmuf", "--warmup-iterations", "1", "--global-sync-iter", "2"),
    "moving average": ("--store-ema", "--ema-fp32", "--ema-decay", "0.5"),
    "dropout": ("--dropout", "0.3", "--encoder-layerdrop", "0.5", "--decoder-layerdrop", "0.5"),
    "checkpointed activations": ("--checkpoint-activations",),
}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_the_first_batch_gives_what_omegas_from_the_beginning_give(flags: tuple[str, ...]) -> None:
    """In the one case omegas come when copies of the parameters are made already; every number that follows is same."""
    batches = [sample(seed) for seed in range(2)]
    omegas = profile(trainer_of(*flags), batches[0])
    auto, given = trainer_of(*flags), trainer_of(*flags)
    start_from(unprofiled(given.get_model()), omegas)
    for trainer in (auto, given):
        trainer.load_checkpoint(NOWHERE)
        _ = trainer.optimizer
    assert bool(unprofiled(auto.get_model())) and not unprofiled(given.get_model())
    torch.rand(7)  # whatever a run has drawn until then, updates are seeded one by one
    for step in range(2):
        logged = [update(trainer, *batches) for trainer in (auto, given)]
        assert logged[0]["loss"] == logged[1]["loss"], step
        assert_equal(states(auto), states(given))
    top = in_model(auto.get_model())["decoder.layers.1.ffn_connection.omega"].float().mean().item()
    assert top == pytest.approx(omegas["decoder"][1]["ffn"], rel=0.05) and top > 1.4


def test_only_once() -> None:
    trainer = trainer_of()
    trainer.load_checkpoint(NOWHERE)
    assert "train_step" in vars(trainer)
    update(trainer, sample())
    assert "train_step" not in vars(trainer) and not unprofiled(trainer.get_model())


def test_other_variants_train_as_ever() -> None:
    trainer = make_trainer(*SGD)
    trainer.load_checkpoint(NOWHERE)
    assert "train_step" not in vars(trainer)


def test_resumed(tmp_path: Path) -> None:
    """Without the first batch; of a checkpoint that was trained from a file, without the file."""
    whole = trainer_of()
    whole.load_checkpoint(NOWHERE)
    update(whole, sample(0))
    path = saved(whole, tmp_path / "checkpoint.pt")
    update(whole, sample(1))
    for flags in ((), ("--residual-args", "profile=omegas.json")):
        resumed = trainer_of(*flags, seed=2)
        resumed.load_checkpoint(path)
        assert "train_step" not in vars(resumed)
        update(resumed, sample(1))
        assert_equal(states(whole), states(resumed))


def trainer_of(*flags: str, seed: int = 1) -> Any:
    return make_trainer(*SGD, *flags, variant="admin", seed=seed)


def states(trainer: Any) -> dict[str, Tensor]:
    found = dict(trainer.get_model().state_dict())
    if trainer._ema is not None:
        found |= {f"ema {name}": value for name, value in trainer.ema.fp32_params.items()}
    found |= {f"bmuf {i}": value for i, value in enumerate(getattr(trainer.optimizer, "global_params", []))}
    return {name: value for name, value in found.items() if "_float_tensor" not in name}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)

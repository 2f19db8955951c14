"""Training goes on with the wiring with which it began, and with other options where these are for training alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_trainer import SGD, make_trainer, sample, update

from fairseq_residuals.core.config import options_of
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.registry import VARIANTS
from fairseq_residuals.core.wiring import Wiring

ITERATOR = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 1, "version": 2}}


def saved(path: Path, variant: str, *flags: str) -> str:
    trainer = make_trainer(*SGD, *flags, variant=variant)
    trainer.load_checkpoint(str(path.with_name("none.pt")))
    update(trainer, sample())
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(path), ITERATOR)
    return str(path)


@pytest.mark.parametrize(
    ("variant", "then", "now"),
    [
        ("admin", "profile=auto", "profile=gone.json"),
        ("post_ln", "init_scale=0.5", "init=xavier"),
        ("dlcl_pre", "history_dropout=0.1", ""),
        ("deepnet", "beta=torchscale", "beta=paper"),
    ],
)
def test_what_only_training_knows_may_change(variant: str, then: str, now: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", variant, "--residual-args", then)
    trainer = make_trainer(*SGD, "--residual-args", now, variant=variant)
    trainer.load_checkpoint(path)
    weight = torch.load(path, weights_only=False)["model"]["encoder.layers.0.fc1.weight"]
    assert trainer.get_num_updates() == 1 and torch.equal(trainer.model.encoder.layers[0].fc1.weight, weight)


def test_what_is_computed_may_not(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", "realformer")
    with pytest.raises(UserError, match=r"realformer\(.*mean=false.* and this is realformer\(.*mean=true"):
        make_trainer(*SGD, "--residual-args", "mean=true", variant="realformer").load_checkpoint(path)
    path = saved(tmp_path / "b.pt", "post_ln")
    other = make_trainer(*SGD, variant="b2t")
    with pytest.raises(UserError, match="--reset-optimizer"):
        other.load_checkpoint(path)
    other.load_checkpoint(path, reset_optimizer=True)


def test_without_the_optimizers_state_another_wiring_takes_the_parameters(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", "post_ln", "--no-save-optimizer-state")
    make_trainer(*SGD, variant="b2t").load_checkpoint(path)


def test_which_options_are_for_training_alone() -> None:
    found = {(name, o.name) for name, v in VARIANTS.items() for o in options_of(v.Config).values() if o.for_training}
    own = {(variant, name) for variant, name in found if name not in ("init", "init_scale")}
    assert own == {
        ("admin", "profile"),
        ("deepnet", "beta"),
        ("depthwise_lstm", "dropout"),
        ("dlcl_post", "history_dropout"),
        ("dlcl_pre", "history_dropout"),
        ("hyper_connections", "out_scale"),
        ("layer_scale", "gain"),
        ("mhc", "mixing"),
        ("mhc", "router"),
        ("transparent_attention", "weight_dropout"),
    }
    assert {name for name, option in found if option == "init"} == set(VARIANTS)
    assert Wiring.parse("mhc", "router=2").computes == Wiring.parse("mhc").computes
    assert Wiring.parse("post_ln:0,mhc:1-2", "n=2").computes != Wiring.parse("post_ln:0,mhc:1-2", "n=3").computes

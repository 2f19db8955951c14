"""Training goes on with the wiring with which it began, and with other options where these are for training alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
import torch
from tiny import batch, build, logits, perturb
from tiny_trainer import SGD, make_trainer, sample, saved, update

from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.config import Option, options_of
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring


def begun(path: Path, variant: str, *flags: str) -> str:
    trainer = make_trainer(*SGD, *flags, variant=variant)
    trainer.load_checkpoint(str(path.with_name("none.pt")))
    update(trainer, sample())
    return saved(trainer, path)


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
    path = begun(tmp_path / "a.pt", variant, "--residual-args", then)
    trainer = make_trainer(*SGD, "--residual-args", now, variant=variant)
    trainer.load_checkpoint(path)
    weight = torch.load(path, weights_only=False)["model"]["encoder.layers.0.fc1.weight"]
    assert trainer.get_num_updates() == 1 and torch.equal(trainer.model.encoder.layers[0].fc1.weight, weight)


def test_what_is_computed_may_not(tmp_path: Path) -> None:
    path = begun(tmp_path / "a.pt", "realformer")
    with pytest.raises(UserError, match=r"realformer\(.*mean=false.* and this is realformer\(.*mean=true"):
        make_trainer(*SGD, "--residual-args", "mean=true", variant="realformer").load_checkpoint(path)
    path = begun(tmp_path / "b.pt", "post_ln")
    other = make_trainer(*SGD, variant="b2t")
    with pytest.raises(UserError, match="--reset-optimizer"):
        other.load_checkpoint(path)
    other.load_checkpoint(path, reset_optimizer=True)


@pytest.mark.parametrize("flags", [("--activation-fn", "gelu"), ("--encoder-attention-heads", "1")], ids=str)
def test_nor_may_a_setting_that_no_parameter_shows(flags: tuple[str, str], tmp_path: Path) -> None:
    path = begun(tmp_path / "a.pt", "post_ln")
    other = make_trainer(*SGD, *flags, variant="post_ln")
    with pytest.raises(UserError, match=rf"{flags[0][2:].replace('-', '_')} \S+, and this is {flags[1]}"):
        other.load_checkpoint(path)
    other.load_checkpoint(path, reset_optimizer=True)


def test_fairseqs_own_models_are_post_ln_or_pre_ln(tmp_path: Path) -> None:
    stock, pre_ln = ("--arch", "transformer"), ("--encoder-normalize-before", "--decoder-normalize-before")
    for flags, same, other in (((), "post_ln", "b2t"), (pre_ln, "pre_ln", "layernorm_scaling")):
        path = begun(tmp_path / f"{same}.pt", "post_ln", *stock, *flags)
        make_trainer(*SGD, variant=same).load_checkpoint(path)
        with pytest.raises(UserError, match=rf"was trained with the wiring {same}\(.* and this is {other}\("):
            make_trainer(*SGD, variant=other).load_checkpoint(path)
        path = begun(tmp_path / f"{other}.pt", other)
        with pytest.raises(UserError, match=rf"was trained with the wiring {other}\(.* and this is {same}\("):
            make_trainer(*SGD, *stock, *flags).load_checkpoint(path)


def test_without_the_optimizers_state_another_wiring_takes_the_parameters(tmp_path: Path) -> None:
    path = begun(tmp_path / "a.pt", "post_ln", "--no-save-optimizer-state")
    make_trainer(*SGD, variant="b2t").load_checkpoint(path)


OPTIONS = [
    (name, option)
    for name, v in sorted(VARIANTS.items())
    for option in options_of(v.Config).values()
    if option.for_training and (name == "post_ln" or option.name not in options_of(Variant.Config))
]


def another_value(option: Option) -> str:
    """Some valid value that is not the default; empty where only the variant knows one (text)."""
    kinds = get_args(option.type) or (option.type,)
    literal = [v for kind in (option.type, *kinds) if get_origin(kind) is Literal for v in get_args(kind)]
    values = [v for v in literal if v != option.default]
    if option.type is bool:
        return str(not option.default).lower()
    if values:
        return str(values[-1])
    if int in kinds or float in kinds:
        start = option.default if isinstance(option.default, int | float) else 1
        value = start + 1 if int in kinds else start / 2 + 0.2
        return f"{value:g}"
    return ""


@pytest.mark.parametrize(("variant", "option"), OPTIONS, ids=[f"{name}-{option.name}" for name, option in OPTIONS])
def test_an_option_for_training_changes_nothing_of_a_trained_model(variant: str, option: Option) -> None:
    """``for_training`` says that a trained model computes the same whatever the value: a checkpoint may then be trained
    on with another one. If this fails for your option, its ``for_training`` is wrong."""
    value = another_value(option)
    if not value:
        pytest.skip(f"option {option.name} of {variant} is text, of which the test knows no other valid value")
    one = f"{option.only_with}=true" if option.only_with else ""
    other = f"{one},{option.name}={value}"
    assert Wiring.parse(variant, other).computes == Wiring.parse(variant, one).computes
    trained, changed = (build("translation", variant, "--residual-args", args) for args in (one, other))
    perturb(trained)
    changed.load_state_dict(trained.state_dict(), strict=True)
    inputs = batch("translation")
    assert torch.equal(logits(changed, "translation", inputs), logits(trained, "translation", inputs))


def test_the_wiring_of_lists_is_compared_too() -> None:
    assert Wiring.parse("mhc", "mixing=identity").computes == Wiring.parse("mhc").computes
    assert Wiring.parse("post_ln:0,mhc:1-2", "n=2").computes != Wiring.parse("post_ln:0,mhc:1-2", "n=3").computes

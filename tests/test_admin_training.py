"""How the omegas get into training: fairseq's own trainer, which asks for a checkpoint before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import batch, build
from tiny_trainer import SGD, make_trainer, sample, update
from torch import Tensor, nn

from fairseq_residuals.plugin.training.admin_profile import profile, write_profile
from fairseq_residuals.wirings.admin_measurement import measure, take_from_files, unprofiled
from fairseq_residuals.wirings.admin_profile_file import Omegas, read_profile
from fairseq_residuals.wirings.core.errors import UserError

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
def test_the_first_batch_gives_what_a_file_of_it_gives(flags: tuple[str, ...], tmp_path: Path) -> None:
    """With a file, omegas are there before any copy of the parameters is; every number that follows is the same."""
    batches = [sample(seed) for seed in range(2)]
    omegas = profile(trainer_of(*flags), batches[:1])
    write_profile(tmp_path / "omegas.json", omegas, {})
    auto, file = trainer_of(*flags), trainer_of(*flags, "--residual-args", f"profile={tmp_path / 'omegas.json'}")
    for trainer in (auto, file):
        trainer.load_checkpoint(NOWHERE)
        _ = trainer.optimizer
    assert bool(unprofiled(auto.get_model())) and not unprofiled(file.get_model())
    torch.rand(7)  # whatever a run has drawn until then, updates are seeded one by one
    for step in range(2):
        logged = [update(trainer, *batches) for trainer in (auto, file)]
        assert logged[0]["loss"] == logged[1]["loss"], step
        assert_equal(states(auto), states(file))
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
    """Without the first batch, and without the file."""
    write_profile(tmp_path / "omegas.json", profile(trainer_of(), [sample(0)]), {})
    settings_ = ("--residual-args", f"profile={tmp_path / 'omegas.json'}")
    for flags in ((), settings_):
        whole = trainer_of(*flags)
        whole.load_checkpoint(NOWHERE)
        update(whole, sample(0))
        iterator = {"epoch": 1, "iterations_in_epoch": 1, "version": 2}
        whole.consolidate_optimizer()
        whole.save_checkpoint(str(tmp_path / "checkpoint.pt"), {"train_iterator": iterator})
        resumed = trainer_of(*flags, seed=2)
        if flags:
            (tmp_path / "omegas.json").unlink()
        resumed.load_checkpoint(str(tmp_path / "checkpoint.pt"))
        assert "train_step" not in vars(resumed)
        for trainer in (whole, resumed):
            update(trainer, sample(1))
        assert_equal(states(whole), states(resumed))


def test_a_file_for_the_encoder_and_the_first_batch_for_the_decoder(tmp_path: Path) -> None:
    omegas = profile(trainer_of(), [sample(0)])
    write_profile(tmp_path / "omegas.json", omegas, {})
    flags = ("--residual-args", f"profile={tmp_path / 'omegas.json'}", "--decoder-residual-args", "profile=auto")
    trainer = trainer_of(*flags)
    trainer.load_checkpoint(NOWHERE)
    assert list(unprofiled(trainer.get_model())) == ["decoder"]
    assert profile(trainer, [sample(0)]) == {"decoder": omegas["decoder"]}


def test_round_trip(tmp_path: Path) -> None:
    omegas: Omegas = {"encoder": [{"self": 1.0, "ffn": 1.1723012924194336}, {}], "decoder": [{"self": 1e-3}]}
    write_profile(tmp_path / "omegas.json", omegas, {"batches": 1})
    assert read_profile(str(tmp_path / "omegas.json")) == omegas
    assert [path.name for path in tmp_path.iterdir()] == ["omegas.json"]


def test_missing(tmp_path: Path) -> None:
    trainer = trainer_of("--residual-args", f"profile={tmp_path / 'none.json'}")
    with pytest.raises(UserError, match=r"profile=.*none\.json: No such file or directory; valid: auto, or a file"):
        trainer.load_checkpoint(NOWHERE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"omegas": []}',
        '{"omegas": {"encoder": {"self": 1.0}}}',
        '{"omegas": {"encoder": [{"self": "1.0"}]}}',
        '{"omegas": {"encoder": [{"self": NaN}]}}',
        '{"omegas": {"encoder": [{"self": -1.0}]}}',
        '{"omegas": {"encoder": [{"self": true}]}}',
        '{"omegas": {"encoder": [{"self": 1.0}',
    ],
)
def test_damaged(text: str, tmp_path: Path) -> None:
    (tmp_path / "omegas.json").write_text(text)
    with pytest.raises(UserError, match=r"omegas\.json: the file is damaged or was not written by"):
        read_profile(str(tmp_path / "omegas.json"))


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        (
            ("translation", ()),
            ("translation", ("--encoder-layers", "3")),
            r"for the encoder it has layers 0-1 \(self, ffn\), needed are layers 0-2 \(self, ffn\)",
        ),
        (
            ("translation", ()),
            ("language_modeling", ()),
            r"for the decoder it has layers 0-1 \(self, cross, ffn\), needed are layers 0-1 \(self, ffn\)",
        ),
        (
            ("language_modeling", ()),
            ("speech", ()),
            r"for the encoder it has nothing, needed are layers 0-1 \(self, ffn\)",
        ),
        (
            ("translation", ("--residual", "admin:0-0,post_ln:1-1")),
            ("translation", ("--residual", "post_ln:0-0,admin:1-1")),
            r"for the encoder it has layers 0-0 \(self, ffn\), needed are layers 1-1 \(self, ffn\)",
        ),
    ],
)
def test_of_another_model(source: Any, target: Any, sentence: str, tmp_path: Path) -> None:
    (task, flags), (other, other_flags) = source, target
    model = build(task, "admin", *flags)
    write_profile(tmp_path / "omegas.json", measure(model, lambda: model(**batch(task))), {})
    needs = build(other, "admin", *other_flags, "--residual-args", f"profile={tmp_path / 'omegas.json'}")
    before = in_model(needs)
    with pytest.raises(UserError, match=sentence):
        take_from_files(needs)
    assert_equal(before, in_model(needs))


def test_a_checkpoint_needs_no_file(tmp_path: Path) -> None:
    """Nor do several in one process."""
    file = tmp_path / "omegas.json"
    inputs = batch("translation")
    models = [build("translation", "admin", "--residual-args", f"profile={file}", seed=i) for i in (1, 2)]
    for model in models:
        write_profile(file, measure(model, lambda model=model: model(**inputs)), {})
        take_from_files(model)
        model.eval()
    file.unlink()
    loaded = [build("translation", "admin", "--residual-args", f"profile={file}", seed=i) for i in (3, 4)]
    for model, other in zip(models, loaded, strict=True):
        other.load_state_dict(model.state_dict())
        take_from_files(other)
        assert not unprofiled(other)
        assert torch.equal(other(**inputs)[0], model(**inputs)[0])
    assert not torch.equal(loaded[0](**inputs)[0], loaded[1](**inputs)[0])


def in_model(model: nn.Module) -> dict[str, Tensor]:
    """Every omega, by its name in a checkpoint."""
    return {name: value for name, value in model.state_dict().items() if name.endswith(".omega")}


def trainer_of(*flags: str, seed: int = 1) -> Any:
    return make_trainer(*SGD, *flags, variant="admin", seed=seed)


def states(trainer: Any) -> dict[str, Tensor]:
    found = dict(trainer.get_model().state_dict())
    if trainer._ema is not None:
        found |= {f"ema {name}": value for name, value in trainer.ema.fp32_params.items()}
    found |= {f"bmuf {i}": value for i, value in enumerate(getattr(trainer.optimizer, "global_params", []))}
    return {name: value for name, value in found.items() if "_float_tensor" not in name}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name

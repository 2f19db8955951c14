"""Checkpoints as safetensors: written and read by average, import and export; tests/hostile has damaged ones."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from fairseq.models import build_model

from fairseq_residuals import build_stack
from fairseq_residuals.__main__ import main
from fairseq_residuals.plugin.checkpoints.checkpoint_file import read_checkpoint, save
from fairseq_residuals.plugin.checkpoints.safetensors_file import write_tensors
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.fairseq_weights import METADATA, load_fairseq_weights

safetensors = pytest.importorskip("safetensors.torch", reason="the extra hf is not installed")


def checkpoint(factor: float = 1.0) -> dict[str, Any]:
    words = factor * torch.arange(12.0).view(4, 3)
    args = Namespace(arch="transformer_b2t_6l", task="translation", dropout=0.1, share_all_embeddings=True, data=None)
    model = {"encoder.embed_tokens.weight": words, "decoder.embed_tokens.weight": words, "half": words.half()}
    return {"model": model, "args": args, "cfg": None}


def write(path: Path, factor: float = 1.0) -> Path:
    save(checkpoint(factor), path)
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.safetensors"]
    loaded = read_checkpoint(path)
    expected = checkpoint()
    assert {k: v for k, v in vars(expected["args"]).items() if v is not None}.items() <= vars(loaded["args"]).items()
    assert loaded["model"].keys() == expected["model"].keys()
    for name, value in expected["model"].items():
        assert torch.equal(loaded["model"][name], value) and loaded["model"][name].dtype == value.dtype
    assert loaded["model"]["encoder.embed_tokens.weight"] is loaded["model"]["decoder.embed_tokens.weight"]


def test_another_program_can_read_it(tmp_path: Path) -> None:
    """By the library itself; a matrix with two names is there once."""
    tensors = safetensors.load_file(write(tmp_path / "a.safetensors"))
    assert sorted(tensors) == ["encoder.embed_tokens.weight", "half"]


def test_the_same_checkpoint_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.safetensors"), write(tmp_path / "b.safetensors")
    assert one.read_bytes() == two.read_bytes()


def test_average_reads_and_writes_it(tmp_path: Path) -> None:
    inputs = [str(write(tmp_path / "a.safetensors", 1.0)), str(write(tmp_path / "b.pt", 3.0))]
    assert main(["average", "--inputs", *inputs, "--output", str(tmp_path / "c.safetensors")]) == 0
    averaged = read_checkpoint(tmp_path / "c.safetensors")["model"]["encoder.embed_tokens.weight"]
    assert torch.equal(averaged, 2 * torch.arange(12.0).view(4, 3))


def record_of(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, "pt") as file:
        return dict(json.loads(file.metadata()[METADATA]))


def change_settings(path: Path, **changes: Any) -> None:
    write_tensors(safetensors.load_file(path), path, {METADATA: json.dumps(record_of(path) | changes)})


def as_two_files(path: Path) -> Path:
    """Lay a checkpoint out as version 1 did until 2026: tensors, and the settings beside them."""
    beside = path.with_name(f"{path.name}.json")
    beside.write_text(json.dumps(record_of(path)))
    write_tensors(safetensors.load_file(path), path)
    return beside


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "reads 'fairseq_residuals checkpoint' of version 1"),
        ({"format": "other"}, "'other' of version 1"),
        ({"digest": "0"}, "do not belong to its tensors"),
        ({"shared": {"x": "nowhere"}}, "'x' shares a tensor"),
        ({"shared": {"half": "encoder.embed_tokens.weight"}}, "'half' shares a tensor"),
        ({"settings": []}, "must be objects"),
    ],
)
def test_settings_that_do_not_belong_there_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors")
    change_settings(path, **changes)
    with pytest.raises(UserError, match=message):
        read_checkpoint(path)


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="do not belong to its tensors"):
        read_checkpoint(path)


def test_two_files_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors")
    expected = read_checkpoint(path)
    beside = as_two_files(path)
    loaded = read_checkpoint(path)
    assert loaded["args"] == expected["args"] and loaded["model"].keys() == expected["model"].keys()
    beside.unlink()
    with pytest.raises(UserError, match=r"has no settings of a checkpoint, and there is no .*a\.safetensors\.json"):
        read_checkpoint(path)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At whichever of the renames or writes it happens."""
    path = write(tmp_path / "a.safetensors")
    renames = []

    def full(source: Any, target: Any) -> None:
        renames.append(target)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match="cannot write"):
        write(path, 2.0)
    assert len(renames) == 1
    assert torch.equal(read_checkpoint(path)["model"]["half"], checkpoint()["model"]["half"])


def test_settings_in_a_file_of_their_own_are_data(tmp_path: Path) -> None:
    """As those in one file are, of which tests/hostile has some."""
    path = write(tmp_path / "a.safetensors")
    settings = record_of(path)["settings"]
    change_settings(path, settings=settings | {"source_lang": "${oc.env:HOME}"})
    as_two_files(path)
    with pytest.raises(UserError, match=r"a\.safetensors has the setting .* which OmegaConf would compute"):
        read_checkpoint(path)


def test_files_that_settings_name_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors")
    settings = record_of(path)["settings"]
    change_settings(path, settings=settings | {"encoder_embed_path": "/etc/passwd", "user_dir": "/tmp"})
    args = read_checkpoint(path)["args"]
    assert getattr(args, "encoder_embed_path", None) is None and getattr(args, "user_dir", None) is None


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (("--residual", "depthwise_lstm"), {}),  # its layers share parameters, which the file has once
        (("--residual", "b2t", "--residual-args", "norm_eps=0.001"), {"norm_eps": 0.001}),
        (("--residual", "post_ln:0-0,pre_ln:1-1"), {}),
        (("--residual", "post_ln", "--decoder-residual", "b2t"), {}),
    ],
)
def test_a_stack_of_its_wiring_takes_the_weights_and_no_other(
    flags: tuple[str, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    args = tiny.settings("transformer_b2t", *tiny.dimensions("translation"), *flags)
    model = build_model(args, tiny.make_task())
    state = {"model": model.state_dict(), "args": args, "cfg": None}
    save(state, tmp_path / "a.safetensors")
    sizes: dict[str, Any] = {"depth": 2, "dim": 16, "heads": 2, "ffn_dim": 32, "other_depth": 2}
    for side in ("encoder", "decoder"):
        name = args.decoder_residual if side == "decoder" else args.residual
        for checkpoint in (tmp_path / "a.safetensors", state):
            stack = build_stack(name, task=side, options=options, **sizes)  # type: ignore[arg-type]
            load_fairseq_weights(stack, checkpoint, f"{side}.")
            assert {p.sum().item() for p in stack.parameters()} <= {p.sum().item() for p in model.parameters()}
            other = build_stack("post_ln" if name == "b2t" else "b2t", task=side, **sizes)  # type: ignore[arg-type]
            with pytest.raises(UserError, match=r"were trained with the wiring .*, and the stack has "):
                load_fairseq_weights(other, checkpoint, f"{side}.")


@pytest.mark.parametrize(
    ("own", "activation", "message"),
    [
        ({"heads": 4}, "gelu", "trained with 2 heads, and the stack has 4"),
        ({}, "gelu", "trained with the activation gelu, .*ffn='gelu'"),
        ({}, "gelu_accurate", "trained with the activation gelu_accurate, .*ffn='gelu_accurate'"),
        ({}, "linear", "trained with the activation linear, .*ffn='linear'"),
    ],
)
def test_weights_of_layers_that_computed_otherwise(own: dict[str, Any], activation: Any, message: str) -> None:
    """Neither heads nor an activation show in the names and shapes of parameters."""
    flags = ("--residual", "b2t", "--activation-fn", activation)
    args = tiny.settings("transformer_b2t", *tiny.dimensions("translation"), *flags)
    state = {"model": build_model(args, tiny.make_task()).state_dict(), "args": args, "cfg": None}
    sizes: dict[str, Any] = {"depth": 2, "dim": 16, "heads": 2, "ffn_dim": 32, "task": "decoder", "other_depth": 2}
    load_fairseq_weights(build_stack("b2t", ffn=activation, **sizes), state)
    with pytest.raises(UserError, match=message):
        load_fairseq_weights(build_stack("b2t", **(sizes | own)), state)


@pytest.mark.parametrize("before", [True, False])
def test_weights_of_stock_fairseq_are_of_two_wirings(before: bool) -> None:
    sizes: dict[str, Any] = {"depth": 2, "dim": 16, "heads": 2, "ffn_dim": 32, "other_depth": 2}
    trained, other = ("pre_ln", "resi_dual") if before else ("post_ln", "b2t")
    weights = build_stack(trained, **sizes).state_dict()
    model = {fairseq_name(f"encoder.layers.{name}"): weight for name, weight in weights.items()}
    settings = {"arch": "transformer", "encoder_normalize_before": before, "encoder_attention_heads": 2}
    load_fairseq_weights(build_stack(trained, **sizes), {"model": model, "args": settings}, "encoder.")
    with pytest.raises(UserError, match=rf"trained with the wiring {trained}\(.*, and the stack has {other}\("):
        load_fairseq_weights(build_stack(other, **sizes), {"model": model, "args": settings}, "encoder.")
    if not before:
        authors = {"model": model, "args": settings | {"residual_bottom_to_top": True}}
        load_fairseq_weights(build_stack("b2t", **sizes), authors, "encoder.")


def test_a_stack_says_how_it_is_wired() -> None:
    sizes: dict[str, Any] = {"depth": 4, "dim": 16, "heads": 2, "ffn_dim": 32, "other_depth": 4}
    for name in VARIANTS:
        assert Wiring.of_stack(build_stack(name, **sizes)).computes == Wiring.parse(name).computes


@pytest.mark.parametrize(
    "settings", [[], {"shared": {"a": [1]}}, {"shared": {"a": "b"}}, {"shared": [1]}, {"settings": "b2t"}, None]
)
def test_a_stack_takes_nothing_from_a_damaged_file(settings: Any, tmp_path: Path) -> None:
    """Settings of another shape, names of tensors that are not there, a file that is cut off or missing."""
    path = tmp_path / "a.safetensors"
    tensors = {"decoder.x": torch.zeros(1)}
    safetensors.save_file(tensors, path, {METADATA: json.dumps(settings)})
    if settings is None:
        path.write_bytes(path.read_bytes()[:-10])
    stack = build_stack("b2t", depth=2, dim=16, heads=2, ffn_dim=32)
    with pytest.raises(UserError, match=r"damaged settings|cannot be read as safetensors"):
        load_fairseq_weights(stack, path)
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        load_fairseq_weights(stack, tmp_path / "missing.safetensors")

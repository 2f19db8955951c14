"""``fairseq-residuals verify``: its table, its exit status, and what it says of files it cannot compare."""

from __future__ import annotations

import ast
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_files import CLINIC, POSTLN, Arrays, changed, drop, golden_path, label, measure, put, unchanged, wrong

from fairseq_residuals.cli import reproduce, table, verify
from fairseq_residuals.cli.__main__ import main
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.experiments.tables import published

TOP_NORMS = "param/decoder.layer_norm.bias (by this plugin's name) and 3 more"
ENCODER, PAIR, LLAMA, LSTM = map(golden_path, ("subln_enc", "rezero_encdec", "lns", "dwlstm_reimpl_gate2add"))


def smaller(arrays: Arrays) -> None:
    name = "param/encoder.layers.0.fc1.weight"
    arrays[name] = arrays[name][:-1]


def reshaped(name: str, *shape: int) -> Callable[[Arrays], None]:
    """The array ``name``, or as many zeros, in another shape."""
    return lambda arrays: arrays.update({name: np.resize(arrays[name], shape)})


def typed(name: str, dtype: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: arrays[name].astype(dtype)})


def more_words(arrays: Arrays) -> None:
    arrays["in/target"][0, 0] = 40


@pytest.mark.parametrize(
    ("path", "change", "sidecar", "message"),
    [
        (POSTLN, drop("param/encoder.layers.0.fc1.bias"), {}, "lacks param/encoder.layers.0.fc1.bias"),
        (POSTLN, drop("param/decoder.embed_tokens.weight"), {}, "lacks param/decoder.embed_tokens.weight"),
        (POSTLN, smaller, {}, "sizes.ffn_dim is 32, and the parameters have 31"),
        (POSTLN, smaller, {"sizes": {"heads": 2}}, "another shape of encoder.layers.0.fc1.bias"),
        (POSTLN, drop("grad/decoder.layers.0.fc1.bias"), {}, "lacks the gradient of decoder.layers.0.fc1.bias"),
        (POSTLN, drop("out/dec_layer1"), {}, "lacks out/dec_layer1"),
        (POSTLN, reshaped("gen/greedy/tokens", 3, 1, 5), {}, "gen/greedy must hold tokens (B, beam, T)"),
        (POSTLN, reshaped("gen/src_tokens", 3, 8), {}, "gen/beam4 has 4 sentences instead of 3"),
        (POSTLN, drop("gen/src_tokens"), {}, "lacks gen/src_tokens or gen/prefix"),
        (POSTLN, drop("in/target"), {}, "lacks in/target"),
        (POSTLN, drop("in/src_lengths"), {}, "lacks in/src_lengths"),
        (POSTLN, drop("in/prev_output_tokens"), {}, "lacks in/loss_weight"),
        (POSTLN, drop("in/prev_output_tokens", "in/src_tokens"), {}, "has no layout of golden files"),
        (CLINIC, drop("out/enc_layer0"), {}, "lacks out/enc_layer0"),
        (CLINIC, drop("out/encoder_out"), {}, "lacks out/encoder_out"),
        (CLINIC, drop("loss/train"), {}, "lacks loss/train"),
        (
            POSTLN,
            unchanged,
            {"variant": "preln"},
            f"lacks {TOP_NORMS}",
        ),
        (
            golden_path("preln"),
            unchanged,
            {"variant": "postln"},
            f"unlike its model, {TOP_NORMS}",
        ),
        (POSTLN, unchanged, {"sizes": {}}, "lacks sizes.heads"),
        (POSTLN, unchanged, {"sizes": {"heads": True}}, "sizes.heads must be a positive whole number"),
        (POSTLN, unchanged, {"sizes": {"heads": 3}}, "sizes.heads must divide the 16 channels, and 3 does not"),
        (
            POSTLN,
            unchanged,
            {"sizes": {"heads": 2, "encoder_layers": 7}},
            "sizes.encoder_layers is 7, and",
        ),
        (
            POSTLN,
            unchanged,
            {"loss": "mine"},
            "loss must be one of fairseq-0.9, fairseq-0.12, nll",
        ),
        (POSTLN, unchanged, {"label_smoothing": 1}, "label_smoothing must be a number from 0 to below 1"),
        (POSTLN, unchanged, {"pad": "<pad>"}, "pad must be a word's number or null"),
        (POSTLN, unchanged, {"generation": {}}, "lacks generation.max_len"),
        (
            POSTLN,
            unchanged,
            {"variant": "b2t_moon"},
            "is not verified: no variant of this plugin computes b2t_moon",
        ),
        # wrong shapes, of everything that a file holds
        (
            POSTLN,
            reshaped("in/src_tokens", 32),
            {},
            "in/src_tokens must be 64-bit whole numbers (B, T), not",
        ),
        (
            POSTLN,
            put("in/src_tokens", 4, 8),
            {},
            "in/src_tokens must be 64-bit whole numbers (B, T)",
        ),
        (POSTLN, reshaped("in/src_tokens", 3, 8), {}, "does not belong together by its shapes"),
        (POSTLN, reshaped("in/src_lengths", 3), {}, "does not belong together by its shapes"),
        (POSTLN, reshaped("in/target", 4, 7), {}, "does not belong together by its shapes"),
        (POSTLN, more_words, {}, "in/target has tokens that are none of the 40 words"),
        (POSTLN, reshaped("out/logits", 4, 8, 39), {}, "another shape of logits evaluation, (4, 8, 39)"),
        (LSTM, reshaped("out/logits"), {}, "has another shape of out/logits, (), than (B, T, words)"),
        (POSTLN, reshaped("out/enc_layer1", 8, 4, 16), {}, "another shape of activations enc_layer1, (8, 4, 16)"),
        (
            POSTLN,
            reshaped("grad/decoder.layers.0.fc1.bias", 8, 4),
            {},
            "another shape of gradients decoder.layers.0",
        ),
        (POSTLN, reshaped("loss/nll", 2), {}, "loss/nll must be one number, not (2,)"),
        (
            POSTLN,
            reshaped("param/encoder.embed_tokens.weight", 640),
            {},
            "another shape of encoder.embed_tokens",
        ),
        (
            CLINIC,
            reshaped("param/encoder.layers.0.self_attn.in_proj_weight", 2),
            {},
            "names and shapes of LiyuanLu",
        ),
        (ENCODER, reshaped("in/loss_weight", 4, 8, 4), {}, "in/loss_weight must be (4, 8, 16), not (4, 8, 4)"),
        (PAIR, reshaped("in/tgt_vectors", 2, 5, 8), {}, "in/tgt_vectors must be (2, 5, 16), not (2, 5, 8)"),
        (PAIR, reshaped("in/src_padding", 2, 5), {}, "in/src_padding must be (2, 6)"),
        (PAIR, drop("in/src_padding"), {}, "lacks in/src_padding"),
        (
            LLAMA,
            reshaped("param/model.layers.0.mlp.down_proj.weight", 16),
            {},
            "another shape of layers.0.fc2",
        ),
        (LLAMA, wrong("in/prev_output_tokens", (0, 0), by=99), {}, "in/prev_output_tokens has tokens that are none of"),
    ],
    ids=label,
)
def test_what_cannot_be_compared_is_one_sentence(
    path: Path, change: Callable[[Arrays], None], sidecar: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        measure(changed(path, tmp_path, change, **sidecar))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_its_description_does_not_describe(tmp_path: Path) -> None:
    """By the SHA-256 of every array."""
    folder = tmp_path / "other"
    folder.mkdir()
    path = changed(POSTLN, tmp_path, unchanged)
    for change, message in (
        (wrong("out/logits", (0, 0, 0)), "out/logits is not what the sidecar describes"),
        (drop("loss/nll"), "lacks loss/nll"),
        (put("out/more"), "holds, unlike its description, out/more"),
        (lambda arrays: arrays.update({"loss/nll": arrays["loss/nll"].astype(np.float64)}), "loss/nll is not what"),
    ):
        other = changed(POSTLN, folder, change)
        other.with_suffix(".json").write_text(path.with_suffix(".json").read_text())
        with pytest.raises(UserError, match=f"^[^\n]*{message}"):
            measure(other)


def test_files_that_are_missing_or_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(path: Path) -> str:
        assert main(["verify", str(path)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("fairseq-residuals verify: error: ")
        return captured.err

    assert f"there is no {tmp_path / 'a.npz'}" in complaint(tmp_path / "a.npz")
    path = tmp_path / POSTLN.name
    shutil.copy(POSTLN, path)
    assert f"there is no {path.with_suffix('.json')}" in complaint(path)
    shutil.copy(POSTLN.with_suffix(".json"), tmp_path)
    path.write_bytes(POSTLN.read_bytes()[:-3000])
    assert f"{path} is damaged" in complaint(path)
    path.with_suffix(".json").write_text("{")
    assert "is not valid JSON" in complaint(path)
    assert "X.npz with its description" in complaint(path.with_suffix(".json"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("subln_clibug_H", "a bug of torchscale's command line"),
        ("tfixup_Sd_initweights", "an initialisation"),
        ("admin_profile_D12_params2", "a profile of Admin"),
        ("realformer_google_mean_S", "Google's BERT"),
    ],
)
def test_files_of_another_kind_are_refused_with_what_they_are(name: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.npz"
    with pytest.raises(UserError) as error:
        measure(path)
    assert str(error.value).startswith(f"{path} is not verified: it ")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "command", [["verify", str(POSTLN)], ["table"], ["reproduce", "b2t/table1"]], ids=lambda c: c[0]
)
def test_without_a_checkout_a_command_says_so(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setattr(verify, "VERIFICATION", missing)
    monkeypatch.setattr(reproduce, "CONFIGS", missing)
    for module in (published, table):
        monkeypatch.setattr(module, "PUBLISHED", missing)
    assert main(command) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"there is no {missing}: it comes with a checkout of the repository" in captured.err
    assert captured.err.count("\n") == 1


def test_nothing_in_the_wheel_imports_what_is_not_in_it() -> None:
    """Commands import it when they are called."""
    package = verify.VERIFICATION.parent
    files = [file for file in package.rglob("*.py") if verify.VERIFICATION not in file.parents]
    for file in files:
        for statement in ast.parse(file.read_text()).body:
            imported = statement.module if isinstance(statement, ast.ImportFrom) else ""
            assert not str(imported).startswith("fairseq_residuals.verification"), file
    settings = tomllib.loads((package.parent / "pyproject.toml").read_text())
    assert "fairseq_residuals.verification*" in settings["tool"]["setuptools"]["packages"]["find"]["exclude"]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(POSTLN), str(CLINIC)]) == 0
    captured = capsys.readouterr()
    rows = [line.split("|") for line in captured.out.splitlines() if line.startswith("|")]
    assert [row[1].strip() for row in rows[2:]] == [POSTLN.name, CLINIC.name]
    assert {len(row) for row in rows} == {10}
    assert len({len(line) for line in captured.out.splitlines()[:4]}) == 1
    assert [row[-2].strip() for row in rows[2:]] == ["ok", "ok"]
    assert captured.err == ""

    assert main(["verify", *map(str, map(golden_path, ("ode_rk2", "ode_rk2_gated_dlcl")))]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    wirings = ["ode_rk2(inner_identity=true)", "ode_rk2(inner_identity=true,mode=gated,dlcl=true)"]
    assert [row[2].strip() for row in rows[2:]] == wirings

    bad = changed(POSTLN, tmp_path, wrong("out/logits", (0, 0, 0)))
    assert main(["verify", str(CLINIC), str(bad)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[-2].strip() for line in lines if line.startswith("|")][2:] == ["ok", "FAIL"]
    assert f"{bad.name}: logits evaluation 1.0e-03, beyond 1e-05" in lines

    lacked = changed(CLINIC, tmp_path, unchanged, variant="moon")
    assert main(["verify", str(POSTLN), str(lacked)]) == 1
    captured = capsys.readouterr()
    assert f"{lacked} is not verified: no variant of this plugin computes moon\n" in captured.err
    assert "not verified" in captured.out
    assert " ok " in captured.out

    other = tmp_path / "subln_clibug_S.npz"
    assert main(["verify", str(POSTLN), str(other)]) == 0
    captured = capsys.readouterr()
    assert "other kind" in captured.out and f"{other} is not verified: it documents a bug" in captured.out
    assert main(["verify", str(other)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and f"{other} is not verified: it documents a bug" in captured.err

    assert main(["verify", "--per-layer", str(POSTLN)]) == 0
    assert f"{POSTLN.name}: activations enc_layer0 " in capsys.readouterr().out


def test_weights_that_are_not_numbers_fail(tmp_path: Path) -> None:
    change = wrong("param/decoder.layers.1.fc1.bias", (3,), by=np.nan)
    failures = measure(changed(POSTLN, tmp_path, change)).failures()
    assert {"logits evaluation", "loss train", "scores greedy, sentence 0"} <= failures.keys()


def test_what_is_not_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(POSTLN, tmp_path, put("out/enc_layer0_dual", 4, 8, 16))
    assert measure(path).not_compared == ["enc_layer0_dual"]
    assert main(["verify", str(path)]) == 0
    assert f"{path.name}: enc_layer0_dual not compared" in capsys.readouterr().out

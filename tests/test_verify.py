"""``fairseq-residuals verify``: its table, its exit status, and what it says of files it cannot compare."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from golden_files import FLAT, FOLDER, SLASHED, Arrays, changed, drop, label, measure, wrong

from fairseq_residuals.cli.__main__ import main
from fairseq_residuals.core.errors import UserError


def smaller(arrays: Arrays) -> None:
    name = "param/encoder.layers.0.fc1.weight"
    arrays[name] = arrays[name][:-1]


@pytest.mark.parametrize(
    ("path", "change", "sidecar", "message"),
    [
        (SLASHED, drop("param/encoder.layers.0.fc1.bias"), {}, "lacks param/encoder.layers.0.fc1.bias"),
        (SLASHED, drop("param/decoder.embed_tokens.weight"), {}, "lacks param/decoder.embed_tokens.weight"),
        (SLASHED, smaller, {}, "another shape of encoder.layers.0.fc1.weight"),
        (
            SLASHED,
            drop("grad/decoder.layers.0.fc1.bias"),
            {},
            "lacks the gradient of decoder.layers.0.fc1.bias",
        ),
        (SLASHED, drop("out/dec_layer1"), {}, "lacks out/dec_layer1"),
        (
            SLASHED,
            drop(*(f"gen/greedy/3/0/{key}" for key in ("tokens", "score", "positional_scores"))),
            {},
            "gen/greedy has 3 sentences instead of 4",
        ),
        (SLASHED, drop("in/target"), {}, "lacks in/target"),
        (SLASHED, drop("in/prev_output_tokens"), {}, "has no layout of golden files"),
        (FLAT, drop("enc_layer_0"), {}, "lacks enc_layer_0"),
        (FLAT, drop("nll_loss"), {}, "lacks nll_loss"),
        (
            SLASHED,
            lambda arrays: None,
            {"variant": "preln"},
            "lacks param/decoder.layer_norm.bias and 3 more",
        ),
        (
            FOLDER / "preln_S.npz",
            lambda arrays: None,
            {"variant": "postln"},
            "unlike its model, param/decoder.layer_norm.bias and 3 more",
        ),
        (
            SLASHED,
            lambda arrays: None,
            {"config_values": {"el": 2}},
            "config_values.dl must be a whole number",
        ),
        (SLASHED, lambda arrays: None, {"loss_formula": "mine"}, "loss_formula must start with"),
        (
            SLASHED,
            lambda arrays: None,
            {"variant": "b2t_moon"},
            r"S.npz (b2t_moon); it can verify admin, b2t, b2t_noln, clinic_",
        ),
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


def test_files_that_are_missing_or_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(path: Path) -> str:
        assert main(["verify", str(path)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("fairseq-residuals verify: error: ")
        return captured.err

    assert f"there is no {tmp_path / 'a.npz'}" in complaint(tmp_path / "a.npz")
    path = tmp_path / SLASHED.name
    shutil.copy(SLASHED, path)
    assert f"there is no {path.with_suffix('.json')}" in complaint(path)
    shutil.copy(SLASHED.with_suffix(".json"), tmp_path)
    path.write_bytes(SLASHED.read_bytes()[:-3000])
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


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(SLASHED), str(FLAT)]) == 0
    captured = capsys.readouterr()
    rows = [line.split("|") for line in captured.out.splitlines() if line.startswith("|")]
    assert [row[1].strip() for row in rows[2:]] == [SLASHED.name, FLAT.name]
    assert {len(row) for row in rows} == {10}
    assert len({len(line) for line in captured.out.splitlines()[:4]}) == 1
    assert [row[-2].strip() for row in rows[2:]] == ["ok", "ok"]
    assert captured.err == ""

    bad = changed(SLASHED, tmp_path, wrong("out/logits", (0, 0, 0)))
    assert main(["verify", str(FLAT), str(bad)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[-2].strip() for line in lines if line.startswith("|")][2:] == ["ok", "FAIL"]
    assert f"{bad.name}: logits evaluation 1.0e-03, beyond 1e-05" in lines

    lacked = changed(FLAT, tmp_path, lambda arrays: None, variant="moon")
    assert main(["verify", str(SLASHED), str(lacked)]) == 1
    captured = capsys.readouterr()
    assert f"{lacked} (moon)" in captured.err
    assert "not verified" in captured.out
    assert " ok " in captured.out

    other = tmp_path / "subln_clibug_S.npz"
    assert main(["verify", str(SLASHED), str(other)]) == 0
    captured = capsys.readouterr()
    assert "other kind" in captured.out and f"{other} is not verified: it documents a bug" in captured.out
    assert main(["verify", str(other)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and f"{other} is not verified: it documents a bug" in captured.err

    assert main(["verify", "--per-layer", str(SLASHED)]) == 0
    assert f"{SLASHED.name}: activations enc_layer0 " in capsys.readouterr().out


def test_what_is_not_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(SLASHED, tmp_path, lambda arrays: arrays.update({"out/enc_layer0_dual": np.zeros((4, 8, 16))}))
    assert measure(path).not_compared == ["enc_layer0_dual"]
    assert main(["verify", str(path)]) == 0
    assert f"{path.name}: enc_layer0_dual not compared" in capsys.readouterr().out

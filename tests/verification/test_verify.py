"""``python -m tests.golden_check``: its table, its exit status, and what it says of files it cannot compare."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from golden_files import CLINIC, POSTLN, changed, golden_path, measure, put, unchanged, wrong

from tests.golden_check.__main__ import main
from tests.golden_check.archive import read_sidecar, write_json


def test_files_that_are_missing_or_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(path: Path) -> str:
        assert main([str(path)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("golden_check: error: ")
        return captured.err

    assert f"there is no {tmp_path / 'a.npz'}" in complaint(tmp_path / "a.npz")
    path = tmp_path / POSTLN.name
    shutil.copy(POSTLN, path)
    assert f"there is no {path.with_suffix('.json')}" in complaint(path)
    write_json(path.with_suffix(".json"), read_sidecar(POSTLN))
    path.write_bytes(POSTLN.read_bytes()[:-3000])
    assert f"{path} is damaged" in complaint(path)
    path.with_suffix(".json").write_text("{")
    assert "is not valid JSON" in complaint(path)
    asked = complaint(path.with_suffix(".json"))
    assert f"{path.with_suffix('.json')} is no golden file" in asked and asked.endswith(f"give {path}\n")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(POSTLN), str(CLINIC)]) == 0
    captured = capsys.readouterr()
    rows = [line.split("|") for line in captured.out.splitlines() if line.startswith("|")]
    assert [row[1].strip() for row in rows[2:]] == [POSTLN.name, CLINIC.name]
    assert {len(row) for row in rows} == {10}
    assert len({len(line) for line in captured.out.splitlines()[:4]}) == 1
    assert [row[-2].strip() for row in rows[2:]] == ["ok", "ok"]
    assert captured.err == ""

    assert main([*map(str, map(golden_path, ("ode_rk2", "ode_rk2_gated_dlcl")))]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    wirings = ["ode_rk2(inner_identity=true)", "ode_rk2(inner_identity=true,mode=gated,dlcl=true)"]
    assert [row[2].strip() for row in rows[2:]] == wirings

    bad = changed(POSTLN, tmp_path, wrong("out/logits", (0, 0, 0)))
    assert main([str(CLINIC), str(bad)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[-2].strip() for line in lines if line.startswith("|")][2:] == ["ok", "FAIL"]
    assert f"{bad.name}: logits evaluation 1.0e-03, beyond 1e-05" in lines

    lacked = changed(CLINIC, tmp_path, unchanged, variant="moon")
    assert main([str(POSTLN), str(lacked)]) == 1
    captured = capsys.readouterr()
    assert f"{lacked} is not verified: no variant of this plugin computes moon\n" in captured.err
    assert "not verified" in captured.out
    assert " ok " in captured.out

    other = tmp_path / "subln_clibug_S.npz"
    assert main([str(POSTLN), str(other)]) == 0
    captured = capsys.readouterr()
    assert "other kind" in captured.out and f"{other} is not verified: it documents a bug" in captured.out
    assert main([str(other)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and f"{other} is not verified: it documents a bug" in captured.err

    assert main(["--per-layer", str(POSTLN)]) == 0
    assert f"{POSTLN.name}: activations enc_layer0 " in capsys.readouterr().out


def test_weights_that_are_not_numbers_fail(tmp_path: Path) -> None:
    change = wrong("param/decoder.layers.1.fc1.bias", (3,), by=np.nan)
    failures = measure(changed(POSTLN, tmp_path, change)).failures()
    assert {"logits evaluation", "loss train", "scores greedy, sentence 0"} <= failures.keys()


def test_what_is_not_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(POSTLN, tmp_path, put("out/enc_layer0_dual", 4, 8, 16))
    assert measure(path).not_compared == ["enc_layer0_dual"]
    assert main([str(path)]) == 0
    assert f"{path.name}: enc_layer0_dual not compared" in capsys.readouterr().out

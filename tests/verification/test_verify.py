"""``python -m tests.golden_check``: its table and its exit status."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden_files import CLINIC, POSTLN, changed, golden_path, measure, wrong

from tests.golden_check.__main__ import main


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, other = changed(POSTLN, tmp_path, wrong("out/logits", (0, 0, 0))), tmp_path / "subln_clibug_S.npz"
    assert main([str(CLINIC), str(golden_path("ode_rk2_gated_dlcl")), str(other)]) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines() if line.startswith("|")][2:]
    assert [row[-2] for row in rows] == ["ok", "ok", "other kind"]
    assert rows[1][2] == "ode_rk2(inner_identity=true,mode=gated,dlcl=true)"
    assert f"{other} is not verified: it documents a bug" in printed
    assert main(["--per-layer", str(bad), str(tmp_path / "missing.npz")]) == 1
    printed = capsys.readouterr().out
    assert "| not read |" in printed
    assert "| FAIL " in printed and f"{bad.name}: activations enc_layer0 " in printed
    assert f"{bad.name}: logits evaluation 1.0e-03, beyond 1e-05" in printed.splitlines()


def test_weights_that_are_not_numbers_fail(tmp_path: Path) -> None:
    change = wrong("param/decoder.layers.1.fc1.bias", (3,), by=np.nan)
    failures = measure(changed(POSTLN, tmp_path, change)).failures()
    assert {"logits evaluation", "loss train", "scores greedy, sentence 0"} <= failures.keys()


def test_what_is_not_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"out/enc_layer0_dual": np.zeros((4, 8, 16), np.float32)}
    path = changed(POSTLN, tmp_path, lambda arrays: arrays.update(more))
    assert measure(path).not_compared == ["enc_layer0_dual"]
    assert main([str(path)]) == 0
    assert f"{path.name}: enc_layer0_dual not compared" in capsys.readouterr().out

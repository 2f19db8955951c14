"""The kit for ports: its files say what the equations say, and its checker tells a wrong port from a right one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fairseq_residuals import list_variants
from fairseq_residuals.__main__ import main
from fairseq_residuals.wirings.core import registry

numpy_files = pytest.importorskip("safetensors.numpy", reason="the package safetensors is not installed")


def norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def test_a_port_in_numpy_computes_what_the_file_says(tmp_path: Path) -> None:
    assert main(["conformance", str(tmp_path), "--wirings", "pre_ln"]) == 0
    kit = numpy_files.load_file(tmp_path / "pre_ln.safetensors")
    x, port = kit["input"], {}
    for i in range(4):
        for connection, name in (("self_attn", "self_attn"), ("ffn", "ffn")):
            gain = f"{i}.{connection}_connection.norm"
            fed = port[f"{i}.{name}.fed"] = norm(x, kit[f"{gain}.weight"], kit[f"{gain}.bias"])
            x = x + fed @ kit[f"{i}.{name}.weight"].T
    port["output"] = norm(x, kit["wiring.norm.weight"], kit["wiring.norm.bias"])
    # of the last bias: the weights of the sum
    port["gradient.wiring.norm.bias"] = kit["output_weights"].sum((0, 1))

    def check(*files: str) -> tuple[int, str]:
        numpy_files.save_file(port, tmp_path / "port.safetensors")
        command = [sys.executable, "check.py", "pre_ln.safetensors", *files]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    assert check("port.safetensors")[0] == 0
    status, text = check()
    assert status == 1 and text.startswith("Compare a port with a file of the kit: python check.py KIT")
    port["0.ffn.fed"] = port["0.ffn.fed"] + 1e-3
    status, text = check("port.safetensors")
    assert status == 1 and "0.ffn.fed differs by" in text and "output differs" not in text
    del port["output"]
    port["colour"] = x
    status, text = check("port.safetensors")
    assert status == 1 and "the port has no output" in text and "colour is not in the kit" in text


@pytest.mark.parametrize(
    ("wiring", "part", "eps"),
    [
        ("pre_ln", "0.ffn_connection.norm", 1e-5),
        ("resi_dual", "wiring.norm", 1e-7),
        ("mhc", "0.ffn_connection.router.logits", 1e-6),
    ],
)
def test_the_description_has_every_eps(wiring: str, part: str, eps: float, tmp_path: Path) -> None:
    """Those of norms and routers, which the option norm_eps=0 leaves as they are and a check hardly sees."""
    assert main(["conformance", str(tmp_path), "--wirings", wiring]) == 0
    assert json.loads((tmp_path / f"{wiring}.json").read_text())["eps"][part] == eps


def test_the_description_has_what_the_equations_call_otherwise(tmp_path: Path) -> None:
    """A port of ZAYA's residual that knows the file of the description alone."""
    assert main(["conformance", str(tmp_path), "--wirings", "zaya_residual", "transparent_attention"]) == 0
    kit = numpy_files.load_file(tmp_path / "zaya_residual.safetensors")
    description = json.loads((tmp_path / "zaya_residual.json").read_text())

    def of(part: str, symbol: str) -> np.ndarray:
        return kit[f"{part}.{description['symbols'][symbol]}"]

    x = (kit["input"] + of("wiring", "b_0")) * of("wiring", "s_0")
    for i in range(description["layers"]):
        for name in ("self_attn", "ffn"):
            part = f"{i}.{name}_connection"
            branch = norm(x, kit[f"{part}.norm.weight"], kit[f"{part}.norm.bias"]) @ kit[f"{i}.{name}.weight"].T
            x = (x + of(part, "b_2")) * of(part, "s_2") + (branch + of(part, "b_1")) * of(part, "s_1")
    np.testing.assert_allclose(norm(x, kit["wiring.norm.weight"], kit["wiring.norm.bias"]), kit["output"])
    # on which some equations depend
    assert description["stack"] == ["decoder", "alone"]
    assert json.loads((tmp_path / "transparent_attention.json").read_text())["stack"] == ["encoder", "pair"]


def test_every_wiring_has_a_file_or_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    refused = {line.partition(":")[0] for line in lines if "not written, for" in line}
    written = {path.stem for path in tmp_path.glob("*.json")}
    assert written | refused == set(list_variants()) and not written & refused
    assert refused == {"realformer", "sub_ln", "normformer", "hybrid_norm", "mudd", "ngpt"}
    for name in written:
        description = json.loads((tmp_path / f"{name}.json").read_text())
        assert description["wiring"] == name and description["equations"]
        kit = numpy_files.load_file(tmp_path / f"{name}.safetensors")
        assert all(np.isfinite(array).all() for array in kit.values())
        # one output for each decoder layer
        assert kit["output"].shape == (5, 2, 8 * (4 if name == "transparent_attention" else 1))
        assert np.abs(kit["gradient.input"]).max() > 0
        assert sum(key.endswith(".fed") for key in kit) == (4 if name == "depthwise_lstm" else 8)
    assert main(["conformance", str(tmp_path), "--wirings", "pre_lnn"]) == 1
    assert "did you mean pre_ln?" in capsys.readouterr().err


def test_a_wiring_of_ones_own_with_a_number_as_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    mine = tmp_path / "one_gain.py"
    mine.write_text(
        "from fairseq_residuals import Variant\nfrom tests.test_own_wiring import Halved\n"
        "class Mine(Variant):\n    connection = Halved\n"
    )
    assert main(["--import", str(mine), "conformance", str(tmp_path), "--wirings", "one_gain"]) == 0
    kit = numpy_files.load_file(tmp_path / "one_gain.safetensors")
    x = kit["input"]
    for i in range(4):
        for name in ("self_attn", "ffn"):
            part = f"{i}.{name}_connection"
            fed = norm(x, kit[f"{part}.norm.weight"], kit[f"{part}.norm.bias"])
            x = x + kit[f"{part}.gain"] * (fed @ kit[f"{i}.{name}.weight"].T)
    np.testing.assert_allclose(kit["output"], x)

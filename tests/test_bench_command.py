"""``fairseq-residuals bench``, every theme from end to end; how fast anything is, no test can say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from bench_cases import FLAGS, TINY, here
from refusals import refusal

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.bench import rounds
from fairseq_residuals.lab.bench.fairseq_models import network, parse

DIM, FFN, ENCODER_LAYERS = 16, 32, 2
DEAD = ENCODER_LAYERS * (4 * DIM * DIM + 4 * DIM + 2 * DIM * FFN + DIM + FFN)
"""What stock fairseq holds twice: queries, keys, values and output, and the FFN, with their biases."""


def read(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    with path.open() as file:
        return {(row["entry"], row["layers"], row["precision"]): row for row in csv.DictReader(file)}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "work", here)


def assert_consistent(row: dict[str, str], tokens: int) -> None:
    step = float(row["step s"])
    n = {key: float(row[key]) for key in ("tokens/s", "least", "most", "peak MiB")}
    assert n["tokens/s"] * step == pytest.approx(tokens)
    assert 0 < n["least"] <= n["tokens/s"] <= n["most"]
    assert n["peak MiB"] > 50


def test_train_in_processes_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('the roof is on fire')")
    also = f"broken=b2t PYTHONPATH={tmp_path}"
    files = ["--csv", str(tmp_path / "t.csv")]
    names = ["--beside", "stock", "--variants", "b2t", "--also", also]
    assert main(["bench", "train", *FLAGS, *names, "--repeats", "1", *files]) == 0
    rows = read(tmp_path / "t.csv")
    stock, b2t, broken = (rows[(n, "2", "fp32")] for n in ("stock", "b2t", "broken"))
    for row in (stock, b2t):
        assert_consistent(row, tokens=15)
        phases = sum(float(row[f"{phase} s"]) for phase in ("forward", "backward", "optimizer"))
        assert phases <= float(row["step s"]) * (1 + 1e-9)
        ratio = float(row["tokens/s"]) / float(stock["tokens/s"])
        assert float(row["x stock"]) == pytest.approx(ratio)
        assert float(row["x memory"]) == pytest.approx(float(row["peak MiB"]) / float(stock["peak MiB"]), rel=1e-3)
        assert row["torch"] and row["date"] and row["rounds"] == "1"
    assert int(b2t["parameters"]) == sum(p.numel() for p in network(parse("b2t"), TINY).model.parameters())
    lean = sum(p.numel() for p in network(parse("stock-lean"), TINY).model.parameters())
    assert int(stock["parameters"]) - lean == DEAD
    assert broken["failure"] == "crashed (status 1): RuntimeError: the roof is on fire" and not broken["tokens/s"]
    shown = capsys.readouterr().out
    assert "broken (2 layers, 16x32x2, fp32): crashed" in shown and "fairseq 0.12.2" in shown
    assert "| broken | 2 | 16x32x2 | fp32 | - |" in " ".join(shown.split())


def test_stock_generates_by_its_fused_kernel() -> None:
    found = rounds.work("generate", parse("stock"), TINY, 300)
    assert found["tokens"] == 3 * (5 + 1)


@pytest.mark.usefixtures("in_this_process")
def test_generate(tmp_path: Path) -> None:
    names = ["--beside", "stock-lean", "--variants", "pre_ln", "--beam", "2"]
    flags = [*names, "--precision", "fp32", "bf16", "--repeats", "2", "--csv", str(tmp_path / "g.csv")]
    assert main(["bench", "generate", *FLAGS, *flags]) == 0
    rows = read(tmp_path / "g.csv")
    assert len(rows) == 4
    for name in ("stock-lean", "pre_ln"):
        for precision in ("fp32", "bf16"):
            row = rows[(name, "2", precision)]
            assert_consistent(row, tokens=18)
            assert row["rounds"] == "2" and row["case beam"] == "2" and row["x stock"] == ""


@pytest.mark.usefixtures("in_this_process")
def test_depths_and_flags_for_all(tmp_path: Path) -> None:
    names = ["--beside", "stock-lean", "--variants", "resi_dual", "--dropout", "0.2", "--repeats", "1"]
    assert main(["bench", "train", *FLAGS, *names, "--layers", "1", "2-1", "--csv", str(tmp_path / "m.csv")]) == 0
    rows = read(tmp_path / "m.csv")
    assert list(rows) == [(n, depths, "fp32") for depths in ("1", "2-1") for n in ("stock-lean", "resi_dual")]
    assert {row["environment and flags"] for row in rows.values()} == {"--dropout 0.2"}


@pytest.mark.usefixtures("in_this_process")
def test_nothing_measured_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    """Hypotheses of 1024 tokens do not fit into the model."""
    names = ["--variants", "b2t", "--beside"]
    assert main(["bench", "generate", *FLAGS, *names, "--tokens", "3x1024", "--repeats", "1"]) == 1
    assert "has 1024 positions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--variants", "b3t"], "unknown wiring 'b3t' (did you mean b2t?)"),
        (["--beside", "stok"], "beside wirings there are stock, stock-lean"),
        (["--variants", "post_ln,pre_ln"], "'post_ln,pre_ln' is not a wiring or a list of wirings with their layers"),
        (["--variants", "--beside"], "there is nothing to measure"),
        (["--also", "x=b2t oops"], "--also 'x=b2t oops' is not understood"),
        (["--variants", "b2t", "--also", "b2t=b2t"], "'b2t' is asked for twice"),
        (["--variants", "b2t", "--beside", "b2t"], "'b2t' is asked for twice"),
        (["--variants", "b2t", "--droput", "0.3"], "unrecognized arguments: --droput 0.3"),
        (["--dims", "huge"], "--dims huge is not understood; valid is such as base, big, or 512x2048x8"),
        (["--dims", "16x32x3"], "the dimension 16 has to be even, and a multiple of the 3 heads"),
        (["--tokens", "64"], "--tokens 64 is not understood; valid is such as 64x32"),
        (["--layers", "0"], "--layers must be numbers such as 18, or 12-6 for encoder and decoder, not 0"),
        (["--repeats", "0"], "--repeats must be at least 1, not 0"),
        (["--vocabulary", "4"], "--vocabulary must be at least 5, not 4"),
        (["--device", "cuda:77"], "--device cuda:77 is not there"),
        (["--csv", "no/such/folder/t.csv"], "there is no folder no/such/folder to write t.csv to"),
    ],
)
def test_bad_input(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refusal(capsys, "bench", "train", *flags, status=2)

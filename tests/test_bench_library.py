"""``fairseq-residuals bench library``: stacks of several libraries that do the same work."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench_cases import TINY, here

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.bench import library, rounds
from fairseq_residuals.lab.bench.entries import Entry, parse_also
from fairseq_residuals.wirings.core import registry
from fairseq_residuals.wirings.core.errors import UserError

TWO = "post_ln:0-0,pre_ln:1-1/norm_type=rms"
SIZES = ["--dims", "16x32x2", "--layers", "2", "--tokens", "3x6", "--steps", "1", "--warmup", "1", "--repeats", "1"]
CASE = replace(TINY, tokens=6, dim=96, ffn_dim=192)  # x-transformers wants more than 64 channels


def build(entry: Entry) -> torch.nn.Module:
    try:
        return entry.network(entry, CASE)
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", [*library.ENTRIES, *library.WIRINGS, "mhc/n=2", TWO])
def test_every_stack_has_one_shape_and_looks_at_no_later_position(name: str) -> None:
    torch.manual_seed(1)
    model = build(library.parse(name)).eval()
    x = torch.randn(3, 6, 96)
    changed = torch.cat([x[:, :4], torch.randn(3, 2, 96)], 1)
    with torch.no_grad():
        y, other = model(x), model(changed)
    assert y.shape == x.shape
    torch.testing.assert_close(other[:, :4], y[:, :4], rtol=1e-4, atol=1e-4)
    assert (other[:, 4:] - y[:, 4:]).abs().max() > 1e-2


def test_a_label_is_not_what_is_built() -> None:
    labelled = parse_also("small=gpt2", library.parse)
    assert type(next(build(labelled).children())).__name__ == "GPT2Model" and str(labelled) == "small"


@pytest.mark.parametrize("names", [("pytorch", "gpt2", "pre_ln"), ("gpt2", "x-transformers")])
def test_pre_ln_of_all_libraries_has_as_many_matrices(names: tuple[str, ...]) -> None:
    counts = set()
    for name in names:
        parameters = dict(build(library.parse(name)).named_parameters())
        matrices = [p for key, p in parameters.items() if p.dim() == 2 and ".wte." not in key and ".wpe." not in key]
        counts.add(sum(p.numel() for p in matrices))
    assert counts == {CASE.depths[1] * (4 * 96 * 96 + 2 * 96 * 192)}


def test_wirings_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    mine = tmp_path / "half_a_branch.py"
    mine.write_text("from tests import test_own_wiring\nclass Own(test_own_wiring.Halved): pass\n")
    flags = [*SIZES, "--wirings", "pre_ln", "half_a_branch", "--beside"]
    assert main(["--import", str(mine), "bench", "library", *flags]) == 0
    assert "not measured" not in capsys.readouterr().out


def test_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rounds, "work", here)
    names = ["--wirings", "pre_ln", "mhc", "--beside", "pytorch", "--also", "ours by oneDNN=pre_ln --onednn"]
    flags = ["--precision", "fp32", "bf16", "--csv", str(tmp_path / "l.csv")]
    assert main(["bench", "library", *SIZES, *names, *flags]) == 0
    rows = list(csv.DictReader((tmp_path / "l.csv").open()))
    assert len(rows) == 8 and not any(row["failure"] for row in rows)
    speeds = {(row["entry"], row["precision"]): float(row["tokens/s"]) for row in rows}
    for row in rows:
        ratio = speeds[row["entry"], row["precision"]] / speeds["pre_ln", row["precision"]]
        assert float(row["x pre_ln"]) == pytest.approx(ratio)
    assert "x pre_ln" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--also", "a=pre_ln --fast-on-cpu"], "valid are --compile, --onednn"),
        (["--layers", "12-6"], "these stacks have one number"),
        (["--wirings", "prelnn"], "beside wirings there are pytorch"),
    ],
)
def test_mistakes(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "library", *flags]) != 0
    assert message in capsys.readouterr().err

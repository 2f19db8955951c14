"""``fairseq-residuals compare`` from entries to the verdict, on sentences to copy."""

from __future__ import annotations

import csv
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refusal
from running import argv_of, succeed

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.compare import command
from fairseq_residuals.lab.compare.cells import Cell, Comparison, Result, read_results
from fairseq_residuals.lab.compare.tasks import RUNGS, TASKS
from fairseq_residuals.lab.utils.checkout import RESULTS
from fairseq_residuals.plugin.folders import locked

TWIN = """from fairseq_residuals.wirings.variants.pre_ln import PreLN, PreLNConnection


class Twin(PreLN):
    connection = PreLNConnection
"""
"""Pre-LN under another name."""
NORM = """from torch import nn

from fairseq_residuals import register_norm

register_norm("mine", nn.RMSNorm)
"""
TINY = ["--task", "copy", "--depth", "1", "--dim", "16", "--updates", "16", "--tokens", "300"]
TINY += ["--rates", "0.01", "--seeds", "2", "--baseline-seeds", "2", "--jobs", "2"]
MEASURED = ("entry", "lr", "seed", "ended", "valid_loss", "train_loss", "unigram_loss", "parameters", "curve")


def call(tmp_path: Path, out: str, *flags: str) -> list[str]:
    twin, norm = tmp_path / "twin.py", tmp_path / "norm.py"
    twin.write_text(TWIN)
    norm.write_text(NORM)
    entries = [str(twin), "post_ln/norm_type=mine"]
    return ["--import", str(norm), "compare", *entries, *TINY, "--out", str(tmp_path / out), *flags]


def runs_csv(folder: Path) -> Path:
    (path,) = folder.glob("copy-*/runs.csv")
    return path


def measured(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return sorted(({name: line[name] for name in MEASURED} for line in csv.DictReader(file)), key=repr)


def killed_after_the_first_run(argv: list[str], out: Path) -> None:
    process = subprocess.Popen(argv_of("fairseq-residuals", *argv), stdout=subprocess.DEVNULL)
    while process.poll() is None and not list(out.glob("copy-*/runs.csv")):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    assert 1 <= len(read_results(runs_csv(out))) < 4


def test_undisturbed_killed_and_merged_are_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = succeed("fairseq-residuals", *call(tmp_path, "whole"), cwd=tmp_path).out
    whole = runs_csv(tmp_path / "whole")
    check_the_runs(whole)
    check_what_is_printed(printed, next(whole.parent.glob("runs/**/seed1/train.001.log")).read_text())
    check_the_report(whole.parent)

    fewer = [text for text in call(tmp_path, "killed") if not text.startswith("post_ln")]
    killed_after_the_first_run(fewer, tmp_path / "killed")
    again = succeed("fairseq-residuals", *fewer, cwd=tmp_path).out
    trained = [run for run in measured(whole) if not run["entry"].startswith("post_ln")]
    assert len(trained) == 4 and measured(runs_csv(tmp_path / "killed")) == trained
    assert again.count(": not distinguishable from pre_ln: +0.000 bits") == 1

    lines = whole.read_text().splitlines(keepends=True)
    for name, chosen in (("one", lines[1:3]), ("other", lines[2:])):
        half = tmp_path / name
        half.mkdir()
        (half / "runs.csv").write_text("".join([lines[0], *chosen]))
    merge = ["--merge", str(tmp_path / "one"), "--merge", str(tmp_path / "other")]
    assert main(call(tmp_path, "merged", *merge)) == 0
    assert ": not distinguishable from pre_ln: +0.000" in capsys.readouterr().out
    assert measured(runs_csv(tmp_path / "merged")) == measured(whole)
    assert ",did not learn," in lines[1]
    (tmp_path / "one" / "runs.csv").write_text(lines[0] + lines[1].replace(",did not learn,", ",unheard of,"))
    assert main(call(tmp_path, "merged", *merge)) == 1
    assert "line 2 is no result of a run: ended is 'unheard of'" in capsys.readouterr().err

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a finished run was done again")

    monkeypatch.setattr("fairseq_residuals.lab.compare.command.carry_out", refuse)
    assert main(call(tmp_path, "whole")) == 0
    assert "Nothing is left." in (whole.parent / "report.md").read_text()


def check_the_runs(path: Path) -> None:
    results = read_results(path)
    losses = {(o.entry.partition("#")[0], o.seed): o.valid_loss for o in results}
    post_ln = "post_ln/norm_type=mine"
    assert set(losses) == {(name, seed) for name in ("pre_ln", "twin", post_ln) for seed in (1, 2)}
    assert losses["twin", 1] == losses["pre_ln", 1] != losses[post_ln, 1]
    assert losses["pre_ln", 1] != losses["pre_ln", 2]
    for result in results:
        (log,) = path.parent.glob(
            f"runs/compare/copy/{re.sub('[#/]', '-', result.entry)}-lr0.01-*/seed{result.seed}/train.001.log"
        )
        assert f'"valid_loss": "{result.valid_loss:g}"' in log.read_text()
        assert f"num. shared model params: {result.parameters:,} " in log.read_text()
        assert [update for update, _ in result.points] == list(range(2, 17, 2))
        assert result.points[-1][1] == result.valid_loss
        assert "configs" in result.command and str(path.parents[2]) not in result.command
    assert not list(path.parent.rglob("*.pt"))


def check_what_is_printed(printed: str, log: str) -> None:
    plan, _, report = printed.partition("# Wirings compared on copy")
    said = re.search(r"1 layers, 16 wide, 16 updates of up to 300 tokens, which read .* ([\d.]+) times", plan)
    assert said and float(said[1]) == pytest.approx(float(re.findall(r'"update": ([\d.]+)', log)[-1]), abs=1e-3)
    assert "INFO" not in plan + report
    assert "paired t-test" in plan and "standard deviations of a run is found with 80% probability" in plan
    (twin,) = (line.replace("|", "").split() for line in plan.splitlines() if line.startswith("| twin#"))
    assert twin[5] == "yes" and twin[2] == "1.000"
    assert ": not distinguishable from pre_ln: +0.000 bits per token" in report
    null = [line for line in report.splitlines() if line.startswith("| twin#") and " seconds " in line]
    assert len(null) == 1 and null[0].endswith("not distinguishable |")
    assert "Noise floor: pre_ln varies by" in report


def check_the_report(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    # it loads nothing
    assert all(link.startswith("#") for link in re.findall(r"(?:src|href)=[\"']?([^\"'>]+)", page))
    text = (folder / "report.md").read_text(encoding="utf-8")
    for name in ("rates", "curves", "forest", "costs"):
        assert f"]({name}.png)" in text
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["pre_nl", "--task", "copy"], "unknown wiring 'pre_nl' (did you mean pre_ln?)"),
        (["--task", "copy"], "name a wiring to compare with pre_ln"),
        (["b2t"], "give one of --task (copy, cldr, debian_en_it, debian_lm, manuals_lm) and --data DIR"),
        (["b2t", "--task", "copy", "--seeds", "0"], "--seeds must be at least 1, not 0"),
        (["b2t", "--task", "copy", "--rates", "0"], "--rates and --hours must be numbers of more than 0"),
        (["b2t", "--task", "copy", "--rates", "inf"], "--rates and --hours must be numbers of more than 0"),
        (["b2t", "--task", "copy", "--override", "common.seed=7"], "--override common.seed: --depth, --dim,"),
        (["b2t", "--task", "copy", "--override", "+lr_scheduler.lr=[0.5]"], "--override lr_scheduler.lr: --depth,"),
        (["b2t", "--task", "copy", "--override", "common.amp=true"], "--override common.amp: --depth, --dim,"),
        (["b2t", "--task", "copy", "--gpus", "99"], "--gpus 99: PyTorch finds"),
        (["b2t", "--task", "copy", "--gpus", "1", "--jobs", "3"], "--jobs is for runs on the CPU; --gpus says"),
        (["b2t", "--data", "/nowhere"], "--data /nowhere is no binarized folder"),
        (["post_ln:0-5,pre_ln:6-17", "--task", "copy"], "'post_ln:0-5,pre_ln:6-17' must name each layer of"),
        (["transparent_attention", "--task", "debian_lm"], "wiring 'transparent_attention' cannot be used there"),
        (
            ["b2t", "--task", "copy", "--override", "model.dropuot=1"],
            "unknown key dropuot under model (did you mean dropout?)",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    flags: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert f"compare: error: {complaint}" in refusal(capsys, "compare", *flags, "--out", out)
    assert not out.exists()


def test_two_calls_at_once_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["compare", "b2t", *TINY, "--out", str(tmp_path)]
    assert main([*flags, "--dry-run"]) == 0
    (folder,) = tmp_path.glob("copy-*-16-*")
    with locked(folder):
        assert f"another process is at work in {folder}" in refusal(capsys, *flags, "--dry-run")


READ, WRITE = "read(self, s):\n        return ", "write(self, s, y):\n        return s | {'x': "


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        (f"{READ}self.norm(s['x'] + s['x'].mean(0)), s", ": it looks ahead: its output at a position depends on later"),
        # by a parameter that starts at 0
        (f"{READ}self.norm(s['x'] + self.norm.bias * s['x'].mean(0)), s", ": it looks ahead: its output"),
        (f"{WRITE}s['x'] + (y + y.mean(0) if self.training else y)}}", ": it looks ahead: its output"),
        (f"{WRITE}s['x'] + y + torch.randn_like(y)}}", ": it looks ahead: its output"),
        (f"{WRITE}s['x'] + y - y.mean(1, keepdim=True)}}", ": it mixes a batch: a sentence's output"),
        (f"{WRITE}s['x'] + y * y.shape[0]}}", ": it mixes a batch: a sentence's output"),
        (f"{WRITE}s['x'] + y - (y.mean(1, True) if self.training else 0)}}", ": it mixes a batch: a sentence's output"),
        (f"{WRITE}s['x'] + y * (math.nan if self.training else 1)}}", ": its outputs are no numbers before it trains"),
        (f"{WRITE}s['x'].add_(y)}}", " fails in its first pass: RuntimeError: one of the variables needed for"),
        (f"{READ}s['nothing'], s", " fails in its first pass: KeyError: 'nothing'; .*own.*py, line 8"),
    ],
)
def test_a_wiring_that_cannot_be_compared_is_refused(
    own: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what it does in training alone, too, to the sentences of a batch, and in place."""
    text = TWIN.replace("class Twin", f"class Own(PreLNConnection):\n    def {own}\n\n\nclass Twin")
    file = tmp_path / f"own_{tmp_path.name}.py"
    file.write_text(f"import math\nimport torch\n{text.replace('connection = Pre', 'connection = Own#')}")
    assert main(["compare", str(file), *TINY, "--out", str(tmp_path), "--dry-run"]) == 1
    assert re.search(complaint, capsys.readouterr().err)


def test_rounding_in_a_deep_stack_without_norms_is_no_other_sentence(tmp_path: Path) -> None:
    deep = [*TINY, "--depth", "18", "--dim", "64", "--out", str(tmp_path), "--dry-run"]
    assert main(["compare", "b2t_no_ln", *deep]) == 0


def test_runs_that_were_scored_otherwise_are_of_another_comparison(tmp_path: Path) -> None:
    usual = Comparison(TASKS["copy"], RUNGS["xs"], 2, tmp_path, tmp_path, 0)
    assert usual.shared != replace(usual, overrides=("recipe.evaluate.flags.beam=9",)).shared


def test_results_with_columns_of_earlier_versions_are_read() -> None:
    for path in (RESULTS / "compare").glob("*/runs.csv"):
        assert len(read_results(path)) == len(path.read_text().splitlines()) - 1 > 0


def made_up(cell: Cell, facts: Mapping[str, Any]) -> Result:
    """What a run would have come to, without the run."""
    usual = {"entry": cell.entry.name, "lr": cell.lr, "seed": cell.seed, "curve": "16:2", "valid_loss": 2.0}
    usual |= {field.name: 0 for field in fields(Result) if field.name not in usual} | {"ended": "learned"}
    return Result(**(usual | facts))  # type: ignore[arg-type]


def test_rates_that_were_not_asked_for_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def carry_out(comparison: Comparison, cell: Cell, *_: Any) -> Result:
        facts = {"settings": comparison.shared, "data": comparison.data_digest, "unigram_loss": 4.0, "reason": ""}
        return made_up(cell, facts | {"score": None, "signature": ""})

    monkeypatch.setattr(command, "carry_out", carry_out)
    flags = ["compare", "b2t", *TINY, "--out", str(tmp_path)]
    assert main([*flags, "--rates", "0.01", "--rates", "0.02"]) == 0
    before = {o.key for o in read_results(runs_csv(tmp_path))}
    capsys.readouterr()
    assert main([*flags, "--rates", "0.01", "--show", "--score"]) == 0
    printed = capsys.readouterr()
    assert "0.02" not in printed.out and "does not name" not in printed.err
    assert "take their lines out of runs.csv and delete their folders in runs/" in printed.err
    assert main(["compare", "mudd", *flags[2:], "--rates", "0.01", "--show"]) == 0
    printed = capsys.readouterr()
    assert "the report leaves out what this call does not name: b2t" in printed.err
    named = [key for key in before if key[:2] == ("pre_ln", 0.01)]
    assert f"- {len(named)} runs, " in runs_csv(tmp_path).with_name("report.md").read_text()
    assert {o.key for o in read_results(runs_csv(tmp_path))} == before


def test_no_run_begins_that_would_end_too_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "b2t", *TINY, "--out", str(tmp_path), "--hours", "0.0001"]) == 0
    assert "b2t: not run." in capsys.readouterr().out
    (report,) = tmp_path.glob("copy-*/report.md")
    assert "pre_ln, lr 0.01, seed 1" in report.read_text().partition("## Not run")[2]


def test_a_failed_run_ends_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_memory = {"ended": "failed", "reason": "no memory"}
    monkeypatch.setattr(
        command, "carry_out", lambda _, cell, *__: made_up(cell, no_memory if "b2t" in cell.name else {})
    )
    assert main(["compare", "b2t", *TINY, "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "b2t: failed at every rate from 0.01 to 0.01." in printed.out
    assert "error: 1 of 3 runs failed, the first of b2t: no memory; the same command tries" in printed.err


def test_a_training_that_an_override_ends_early_did_not_diverge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["compare", "b2t", *TINY, "--seeds", "1", "--baseline-seeds", "1", "--out", str(tmp_path)]
    assert main([*flags, "--override", "optimization.stop_time_hours=1e-9"]) == 1
    printed = capsys.readouterr()
    assert "diverged at every rate" not in printed.out
    assert re.search(r"2 of 2 runs failed, the first of \w+: fairseq ended or validated no more before", printed.err)
    assert len(list(tmp_path.rglob("checkpoint_last.pt"))) == 2  # kept, as for any failed run


def test_the_loss_has_no_smoothed_labels(tmp_path: Path) -> None:
    smoothed = ["criterion._name=label_smoothed_cross_entropy", "--override", "+criterion.label_smoothing=0.4"]
    flags = ["b2t", *TINY, "--seeds", "1", "--baseline-seeds", "1", "--out", str(tmp_path), "--override", *smoothed]
    assert main(["compare", *flags]) == 0
    (result,) = (o for o in read_results(runs_csv(tmp_path)) if o.entry == "pre_ln")
    (log,) = tmp_path.glob("copy-*/runs/compare/copy/pre_ln-*/seed1/train.001.log")
    assert f'"valid_nll_loss": "{result.valid_loss:g}"' in log.read_text()


AS_JOBS = ["compare", "b2t", *TINY, "--seeds", "1", "--baseline-seeds", "1", "--cluster", "local"]


def test_each_run_is_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="the package submitit is missing")

    def refuse(*args: object) -> None:
        raise AssertionError("a run was trained here and not as a job")

    monkeypatch.setattr(command, "carry_out", refuse)
    assert main([*AS_JOBS, "--out", str(tmp_path)]) == 0
    (runs,) = tmp_path.glob("copy-*/runs.csv")
    results = read_results(runs)
    assert {result.entry for result in results} == {"pre_ln", "b2t"}
    assert all(len(result.points) == 8 and result.ended != "failed" for result in results)
    assert len(list(runs.parent.glob("jobs/*_result.pkl"))) == 2


def test_without_submitit_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main([*AS_JOBS, "--out", str(tmp_path / "out")]) == 1
    assert "--cluster needs the package submitit: pip install submitit" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

"""The stages of a job, with stand-ins for fairseq's programs: what is done once, what again, what a failure leaves."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from recipe_files import job_of, read_table

from fairseq_residuals.lab.recipes import reproduce, runner, stages
from fairseq_residuals.lab.recipes.evaluate import measure
from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.lab.recipes.runner import Run, Runner
from fairseq_residuals.lab.recipes.stages import Diverged, Stages
from fairseq_residuals.lab.recipes.tables import read_records
from fairseq_residuals.lab.utils import checkout
from fairseq_residuals.wirings.core.errors import UserError


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``programs(name=script)`` puts shell scripts in the place of programs; each call is a line of calls.txt."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = tmp_path / "calls.txt"
    calls.touch()

    def install(**scripts: str) -> None:
        for name, script in scripts.items():
            path = folder / name.replace("_", "-")
            path.write_text(f'#!/bin/sh\necho "{path.name} $*" >> {calls}\n{script}\n')
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setattr(runner.sysconfig, "get_path", lambda name: str(folder))
    return install, lambda: calls.read_text().splitlines()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = job_of("dlcl/table7/pre_large", gpus=0, data=tmp_path / "data", out=tmp_path / "out")
    job.folder.mkdir(parents=True)
    return job


WORKERS_DIFFER = """cat <<'SAID'
FloatingPointError: Fatal error: gradients are inconsistent between workers. Try --ddp-backend=legacy_ddp.
----
grad_norm across the workers:
rank   0 = 1.25000000
rank   1 = {}

----
SAID
"""


def test_training_is_resumed_after_a_failure_and_not_repeated_after_success(job: Job, programs) -> None:
    install, calls = programs
    install(fairseq_hydra_train=WORKERS_DIFFER.format("1.5") + "echo out of memory; exit 3")
    with pytest.raises(UserError, match=r"fairseq-hydra-train failed with status 3; .*train\.001\.log"):
        Stages(job, Runner()).train()
    assert not (job.folder / "trained.json").exists()
    assert "out of memory" in (job.folder / "train.001.log").read_text()
    install(fairseq_hydra_train="echo trained")
    Stages(job, Runner()).train()
    Stages(job, Runner()).train()
    # the same command twice: fairseq goes on from checkpoint_last.pt of the same folder
    assert len(calls()) == 2
    assert calls()[0] == calls()[1]
    assert f"checkpoint.save_dir={job.checkpoints}" in calls()[0]


def test_hours_are_those_of_all_attempts(job: Job) -> None:
    for number, (start, end) in enumerate([(1000, 4600), (10_000, 11_800)], start=1):
        log = job.folder / f"train.{number:03}.log"
        log.write_text(f"# started {datetime.fromtimestamp(start).astimezone().isoformat()}\n...\n")
        os.utime(log, (end, end))
    (job.folder / "train.003.log").touch()  # as where the disk was full
    assert stages.hours(job) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'FloatingPointError: Minimum loss scale reached (0.0001).'",
            r"^Minimum loss scale reached \(0\.0001\)\.$",
        ),
        (WORKERS_DIFFER.format("nan"), "^Fatal error: gradients are inconsistent"),
    ],
)
def test_divergence_is_remembered(job: Job, programs, script: str, said: str) -> None:
    install, calls = programs
    install(fairseq_hydra_train=f"{script}\nexit 1")
    for _ in range(2):
        with pytest.raises(Diverged, match=said):
            Stages(job, Runner()).train()
    assert len(calls()) == 1


def test_an_evaluation_that_failed_leaves_nothing_that_looks_done(job: Job, programs) -> None:
    install, calls = programs
    [evaluation] = job.evaluate(job.recipe.measurements["BLEU"][0])
    install(fairseq_generate="echo half; exit 1")
    with pytest.raises(UserError, match="fairseq-generate failed with status 1"):
        Stages(job, Runner()).evaluate(evaluation)
    assert not evaluation.log.exists()
    install(fairseq_generate="echo whole")
    Stages(job, Runner()).evaluate(evaluation)
    Stages(job, Runner()).evaluate(evaluation)
    assert evaluation.log.read_text().endswith("whole\n")
    assert len(calls()) == 2


def test_a_corpus_is_prepared_once(job: Job, programs) -> None:
    install, calls = programs
    install(fairseq_residuals=f"mkdir -p {job.corpus}; echo {{}} > {job.corpus}/prepared.json")
    Stages(job, Runner()).prepare()
    Stages(job, Runner()).prepare()
    downloads = f"--downloads {job.settings.downloads}"
    assert calls() == [f"fairseq-residuals prepare wmt14_en_de {job.corpus} --variant dlcl {downloads}"]


def test_two_processes_do_not_work_on_one_run(job: Job, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    install, _ = programs

    def occupied() -> AbstractContextManager[Stages]:
        return Stages.of(job, Runner(), Run("", print))

    with occupied(), pytest.raises(UserError, match="another process is at work in"), occupied():
        pass
    # what a killed process leaves running still counts
    install(fairseq_hydra_train="sleep 60 & echo $! > left_behind")
    monkeypatch.chdir(job.folder)
    with occupied() as at_work:
        at_work.train()
    left_behind = int((job.folder / "left_behind").read_text())
    try:
        with pytest.raises(UserError, match="another process is at work in"), occupied():
            pass
    finally:
        os.kill(left_behind, 15)


def test_a_missing_program_is_named(job: Job, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="the program fairseq-hydra-train is not installed"):
        Stages(job, Runner()).train()


def test_curve_of_validations_over_resumed_training(tmp_path: Path) -> None:
    """The perplexity of JoeyNMT: exp(CE - H), H the entropy of the smoothed targets, by hand for 10 words."""
    job = job_of("joeynmt/perplexity/baseline", gpus=0, data=tmp_path / "data", out=tmp_path / "out")
    job.data.mkdir(parents=True)
    (job.data / "dict.en.txt").write_text("".join(f"w{i} 1\n" for i in range(6)))
    job.folder.mkdir(parents=True)
    for number, records in ((1, {500: 3.0, 1000: 2.5}), (2, {1000: 2.4})):
        said = [json.dumps({"valid_num_updates": str(u), "valid_loss": str(x)}) for u, x in records.items()]
        lines = [f"[2026-01-01 00:00:00,000][valid][INFO] - {record}" for record in said]
        (job.folder / f"train.{number:03}.log").write_text("\n".join(["# started", *lines]) + "\n")
    [score] = measure(job, job.recipe.measurements["curve"][0])
    # H = -0.7 ln 0.7 - 0.3 ln(0.3 / 8), the 0.3 shared by 10 - 2 words
    entropy = 0.24967 + 0.98500
    assert score.metric == "joeynmt_ppl"
    assert score.value == pytest.approx({"500": 8 / 2.718282**entropy, "1000": 2**2.4 / 2.718282**entropy}, rel=1e-4)


def test_failed_training_is_recorded_for_every_metric_and_not_repeated(tmp_path: Path, programs) -> None:
    """It was begun in other passes, and stopped."""
    install, calls = programs
    said = "fairseq-hydra-train: error: training diverged: gradients are Nan/Inf; see the log"
    settings = job_of("x", gpus=0, data=tmp_path / "data", out=tmp_path / "out").settings
    corpus = tmp_path / "data" / "wikitext103"
    corpus.mkdir(parents=True)
    (corpus / "prepared.json").write_text("{}")
    table, results = read_table("b2t/table4"), tmp_path / "results.csv"

    def run(path: Path, **changes: object) -> None:
        work = reproduce.jobs_of(table, replace(settings, **changes), ["16L/Post-LN"], None)
        reproduce.run(table, work, path, Runner(echo=True))

    install(fairseq_hydra_train="exit 3")
    with pytest.raises(UserError, match="fairseq-hydra-train failed with status 3"):
        run(results, max_tokens=2048)
    install(fairseq_hydra_train=f"echo '{said}'; exit 1")
    for _ in range(2):
        run(results)
    recorded = [(r.column, r.metric, r.value) for r in read_records(results)]
    windows = ("ppl_context_0", "ppl_context_960")
    assert recorded == [(column, metric, "failed") for column in ("Valid", "Test") for metric in windows]
    passes = "2048 tokens x 96 passes x 1 devices = 196,608, then 1024 tokens x 192 passes x 1 devices = 196,608"
    assert {r.note for r in read_records(results)} == {f"diverged: gradients are Nan/Inf; fp32, {passes}"}
    assert len(calls()) == 2
    # scored again by a call that would train in other passes: those of the training are on record
    run(tmp_path / "later.csv", max_tokens=8192)
    assert [r.note for r in read_records(tmp_path / "later.csv")] == [r.note for r in read_records(results)]
    (corpus / "prepared.json").write_text('{"sha256": {"raw/test": "prepared again, of another release"}}')
    with pytest.raises(UserError, match=r"is a run on other data than .*wikitext103 has now; choose another --out"):
        run(tmp_path / "other.csv")


def test_the_commit_on_record_is_dirty_where_more_than_results_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    assert checkout.commit().startswith("release 0.")
    (tmp_path / "results").mkdir()
    code, results = tmp_path / "code.py", tmp_path / "results/reproduced.csv"
    code.touch()
    results.touch()
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "Begin")
    head = git("rev-parse", "HEAD").strip()
    results.write_text("a score\n")
    assert checkout.commit() == head
    code.write_text("another\n")
    assert checkout.commit() == f"{head}-dirty" and not checkout.is_committed(code)
    monkeypatch.setenv("PATH", "")  # git is not installed
    assert checkout.commit().startswith("release 0.") and checkout.is_committed(code)


ROWS = ["16L/Post-LN", "16L/Pre-LN", "16L/B2T"]
MEETS_ANOTHER = """
touch {here}/at_work.$$
for i in $(seq 600); do
    [ $(ls {here}/at_work.* | wc -l) -ge 2 ] && echo 'FloatingPointError: gradients are Nan/Inf' && exit 1
    sleep 0.1
done
exit 2
"""
"""A training that diverges when a second one is under way, and fails where it stays alone."""


def test_the_runs_of_a_table_side_by_side(tmp_path: Path, programs) -> None:
    install, calls = programs
    prepared = tmp_path / "data/wikitext103/prepared.json"
    install(fairseq_hydra_train=MEETS_ANOTHER.format(here=tmp_path), fairseq_residuals=f"echo {{}} > {prepared}")
    settings = job_of("x", gpus=0, data=tmp_path / "data", out=tmp_path / "out").settings
    table, results = read_table("b2t/table4"), tmp_path / "results.csv"
    reproduce.run(
        table, reproduce.jobs_of(table, settings, ROWS, None), results, Runner([{"OMP_NUM_THREADS": "3"}] * 2)
    )
    # the corpus that all need was prepared once, before the first of them
    assert len([call for call in calls() if call.startswith("fairseq-residuals")]) == 1
    records = read_records(results)
    assert {(r.row, r.value) for r in records} == {(row, "failed") for row in ROWS}
    assert all(r.device.endswith(", threads: 3") for r in records)
    logs = list((tmp_path / "out").rglob("train.*.log"))
    assert len(logs) == 3 and all("FloatingPointError" in log.read_text() for log in logs)

"""Every small pipeline from nothing to its table, with models of one layer and a handful of updates.

Translation runs its commands as users do, in new processes; the others fork them.
"""

import json
import math
import os
import re
import stat
import sys
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU
from small_by_forks import printed_by_forks

from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.lab.recipes.synthetic_tasks import TASKS, find_task
from fairseq_residuals.lab.recipes.synthetic_tasks.__main__ import main
from fairseq_residuals.lab.recipes.tables import read_records
from fairseq_residuals.lab.recipes.workspace import Workspace

SHALLOW = ["model.encoder_layers=1", "model.decoder_layers=1"]
TINY = ["--updates", "6", "--jobs", "1"]
DEPTHS = {"translation": "18l", "multilingual": "18l", "summarization": "18l", "language_model": "16l"}
DEPTHS["speech"] = "12l_6l"
FAKE_VOICE = """#!{python}
# a stand-in for the program: 40 ms of noise for each word
import random, sys, wave
words = sys.argv[-1].split()
assert sys.argv[1:] == ["-v", sys.argv[2], "-s", sys.argv[4], "-p", sys.argv[6], "--stdout", sys.argv[-1]]
noise = random.Random(sys.argv[-1])
with wave.open(sys.stdout.buffer, "wb") as sound:
    sound.setparams((1, 2, 16000, 640 * len(words), "NONE", ""))
    sound.writeframes(noise.randbytes(1280 * len(words)))
"""


def tiny(name: str, row: str, out: Path, *more: str) -> list[str]:
    return [name, "--rows", row, "--out", str(out), *TINY, *more]


def folder_of(out: Path) -> Path:
    (folder,) = (path for path in out.iterdir() if path.is_dir() and not path.name.startswith("data-"))
    return folder


@pytest.mark.parametrize("name", TASKS)
def test_each_compares_the_variants_at_the_depth_of_its_table(name):
    task = find_task(name)
    workspace = Workspace(task, Path("/nowhere/work"), task.sizes)
    found = []
    for row in task.rows:
        job = Job(workspace.settings(row), task.rows[row].config, 1)
        found.append(job.asked.model._name)
        assert job.asked.optimization.max_update == task.sizes.updates
        assert job.recipe.average == (3, "update")
        assert set(job.recipe.needed(list(task.scores.values()))) == set(task.scores.values())
    family = {"language_model": "transformer_lm", "speech": "s2t_transformer"}.get(name, "transformer")
    assert [re.fullmatch(rf"{family}_(\w+?)_(?:wmt_en_de|wiki103|m)_{DEPTHS[name]}", arch)[1] for arch in found] == [
        "post_ln",
        "pre_ln",
        "b2t",
    ]


def check(name: str, row: str, out: Path, printed: str, metrics: set[str]) -> None:
    """One row was trained, averaged, scored and recorded, and the table says so."""
    task, folder = find_task(name), folder_of(out)
    records = read_records(folder / "results.csv")
    assert {record.column for record in records} == set(task.scores)
    assert {(record.row, record.seed) for record in records} == {(row, 1)}
    assert {record.metric for record in records} == metrics
    assert all(math.isfinite(record.value) and record.value >= 0 for record in records)
    assert "These are not the paper's data" in printed
    assert "Missing: nothing." in printed
    for record in records:
        assert f"{record.value:.2f}" in printed
    (run,) = folder.glob("runs/*/*/*/*/seed1")
    assert (run / "average.pt").is_file()
    assert (folder / "report.txt").read_text() in printed
    assert not list(folder.rglob("*.partial"))


def test_translation_and_what_is_finished_is_not_done_again(tmp_path, capsys):
    call = tiny("translation", "18L-18L/B2T", tmp_path, "--examples", "100", "--subwords", "90", "--override", *SHALLOW)
    assert main(call) == 0
    printed = capsys.readouterr().out
    check("translation", "18L-18L/B2T", tmp_path, printed, {"sacrebleu"})
    assert f"\nOverrides: {' '.join(SHALLOW)}.\n" in printed
    folder = folder_of(tmp_path)
    (corpus,) = tmp_path.glob("data-*/cldr_en_de")
    (log,) = folder.rglob("evaluated/*.log")
    hypotheses = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", log.read_text("utf-8"), re.M))
    references = (corpus / "raw/test.de").read_text("utf-8").splitlines()
    score = BLEU().corpus_score([hypotheses[str(i)] for i in range(10)], [references]).score
    (record,) = read_records(folder / "results.csv")
    assert record.value == pytest.approx(score, abs=1e-9)
    lines = json.loads((corpus / "prepared.json").read_text())["lines"]
    assert lines == {"train": 100, "valid": 10, "test": 10}

    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*.pt")} | {log: log.stat().st_mtime_ns}
    results = (folder / "results.csv").read_text()
    assert main(call) == 0
    assert "Missing: nothing." in capsys.readouterr().out
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    assert (folder / "results.csv").read_text() == results


def test_multilingual_scores_both_directions_of_each_pair(tmp_path):
    out = tmp_path / "out"
    call = tiny("multilingual", "Post-LN/18", out, "--examples", "120", "--subwords", "130")
    printed = printed_by_forks([*call, "--override", *SHALLOW], tmp_path / "streams")
    check("multilingual", "Post-LN/18", out, printed, {"sacrebleu"})
    folder = folder_of(out)
    pairs = ["en-de", "de-en", "en-fr", "fr-en"]
    assert sorted(log.name.split(".")[1].rpartition("-")[0] for log in folder.rglob("evaluated/*.log")) == sorted(pairs)
    german = next(folder.rglob("evaluated/test.en-de-*.log")).read_text("utf-8")
    assert "__de__" in german  # the tag of the target language stands on the source
    by_column = {record.column: record.value for record in read_records(folder / "results.csv")}
    assert f"{(by_column['EX'] + by_column['XE']) / 2:.2f}" in printed


def test_summarization(tmp_path):
    out = tmp_path / "out"
    call = tiny("summarization", "18L-18L/B2T", out, "--examples", "100", "--subwords", "100")
    printed = printed_by_forks([*call, "--override", *SHALLOW], tmp_path / "streams")
    check("summarization", "18L-18L/B2T", out, printed, {"rouge", "rouge_unstemmed"})


def test_language_model_has_adaptive_input_and_softmax(tmp_path):
    out = tmp_path / "out"
    small = [f"model.adaptive_{part}_cutoff='100,300'" for part in ("input", "softmax")]
    call = tiny("language_model", "16L/B2T", out, "--examples", "200")
    printed = printed_by_forks([*call, "--override", "model.decoder_layers=1", *small], tmp_path / "streams")
    check("language_model", "16L/B2T", out, printed, {"ppl_context_0", "ppl_context_96"})
    (log,) = folder_of(out).glob("runs/*/*/*/*/seed1/train.001.log")
    text = log.read_text("utf-8")
    assert "AdaptiveInput" in text
    assert "AdaptiveSoftmax" in text


def test_speech_with_a_stand_in_for_the_program(tmp_path):
    program = tmp_path / "bin/espeak-ng"
    program.parent.mkdir()
    program.write_text(FAKE_VOICE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    out, path = tmp_path / "out", f"{program.parent}:{os.environ['PATH']}"
    call = tiny("speech", "12L-6L/Pre-LN", out, "--examples", "30", "--subwords", "35")
    printed = printed_by_forks([*call, "--override", *SHALLOW], tmp_path / "streams", PATH=path)
    check("speech", "12L-6L/Pre-LN", out, printed, {"wer"})


def test_speech_without_the_program_is_one_sentence_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["speech", "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert message == (
        "small: error: espeak-ng, which reads the numbers, is not installed: on Debian, apt install espeak-ng\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["poetry"], "there is no small task 'poetry': choose one of translation, "),
        (["translation", "--rows", "18L-18L/Post"], "--rows: '18L-18L/Post' is no row of this table; its rows are 18L"),
        (["translation", "--updates", "3"], "--updates is 3 and has to be at least 4"),
        (["translation", "--examples", "5"], "--examples is 5 and has to be at least 20"),
        (["translation", "--jobs", "0"], "--jobs is 0 and has to be at least 1"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(arguments, complaint, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*arguments, "--out", str(out)]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"small: error: {complaint}")
    assert message.count("\n") == 1
    assert not out.exists()

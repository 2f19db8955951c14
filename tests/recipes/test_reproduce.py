"""One row, from a prepared corpus to a file of records, on a corpus of a few words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_data
from running import argv_of, execute, files_under, succeed

from fairseq_residuals import __main__ as cli
from fairseq_residuals.lab.recipes.tables import read_records
from fairseq_residuals.plugin.scoring.metrics import score
from fairseq_residuals.plugin.scoring.text import read_generation, read_lines

ROW = "6L-6L/B2T"
SMALL = [f"model.{stack}_{key}" for stack in ("encoder", "decoder") for key in ("embed_dim=16", "ffn_embed_dim=16")]
SMALL += [f"model.{stack}_{key}" for stack in ("encoder", "decoder") for key in ("attention_heads=2", "layers=2")]
FAST = ["dataset.max_tokens=100", "optimization.update_freq=[2]", "recipe.average.last=2"]
FAST += ["lr_scheduler.warmup_updates=2", "optimization.lr=[0.02]", "model.dropout=0"]
CHANGES = ["optimization.max_update=48", *SMALL, *FAST]
ARGUMENTS = [
    *("reproduce", "b2t/table3", "--rows", ROW, "--gpus", "0", "--seeds", "5", "--results", "results.csv"),
    *("--max-update", "48", "--out", "läufe", "--override", *SMALL, *FAST),
]


def prepare(folder: Path) -> None:
    """Makes a folder in which the corpus of the row looks prepared; the target's words are cut as by subword-nmt."""
    prepared = folder / "data" / "gigaword" / "org_data"
    text, raw = prepared / "text", prepared / "raw"
    text.mkdir(parents=True)
    raw.mkdir()
    tiny_data.write_parallel_text(text)
    (text / "test.t").replace(raw / "test.tgt")
    for split in tiny_data.SIZES:
        lines = [[f"{word}@@ {word}" for word in reversed(line)] for line in tiny_data.sentences(split)]
        (text / f"{split}.tgt").write_text("".join(" ".join(line) + "\n" for line in lines))
        (text / f"{split}.s").rename(text / f"{split}.src")
    prefixes = [x for split in tiny_data.SIZES for x in (f"--{split}pref", text / split)]
    languages = ("--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary")
    succeed("fairseq-preprocess", *prefixes, "--destdir", prepared / "data-bin", *languages)
    (prepared / "prepared.json").write_text("{}")


def check_records(folder: Path) -> None:
    """ROUGE-1, 2 and L, with and without stemming, of one generation, against the titles as they were."""
    records = read_records(folder / "results.csv")
    [log] = files_under(*(folder / "läufe").glob("**/evaluated"))
    hypotheses = read_generation(log).hypotheses
    assert len(hypotheses) == tiny_data.SIZES["test"]
    references = [" ".join(word * 2 for word in reversed(line)) for line in tiny_data.sentences("test")]
    expected = {}
    for metric in ("rouge", "rouge_unstemmed"):
        values = score(metric, hypotheses, references).values
        expected |= {("R-1", metric): values["rouge1"], ("R-2", metric): values["rouge2"]}
        expected[("R-L", metric)] = values["rougeL"]
    assert {(r.column, r.metric): r.value for r in records} == expected
    assert expected[("R-1", "rouge")] > 0
    for record in records:
        assert (record.key, record.row, record.seed) == ("b2t/table3", ROW, 5)
        assert record.note.split("; ") == ["fp32, 100 tokens x 2 passes x 1 devices = 200", *CHANGES]
        assert record.device.startswith("CPU")
        assert 0 < record.hours < 1


def check_average(folder: Path) -> None:
    """Of the last two epochs, as the recipe was told."""
    [log] = (folder / "läufe").glob("**/average.log")
    averaged = [
        Path(line).name for line in read_lines(log) if line.endswith(".pt") and not re.search("wrote|^# ", line)
    ]
    saved = [re.fullmatch(r"checkpoint(\d+)\.pt", path.name) for path in files_under(folder / "läufe")]
    epochs = sorted(int(match[1]) for match in saved if match)
    assert averaged == [f"checkpoint{n}.pt" for n in reversed(epochs[-2:])]


def check_nothing_is_done_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = (folder / "results.csv").read_bytes()
    records = read_records(folder / "results.csv")
    assert cli.main(ARGUMENTS) == 0
    printed = capsys.readouterr().out
    assert "fairseq-residuals table b2t/table3 --reproduced results.csv shows what is on record" in printed
    assert (folder / "results.csv").read_bytes() == before
    # a score that is lost is computed from what has been trained and generated
    (folder / "results.csv").unlink()
    assert cli.main(ARGUMENTS) == 0
    printed = capsys.readouterr().out
    assert "$ " not in printed
    again = read_records(folder / "results.csv")
    assert all(f"{r.row}, {r.column}, seed 5: {r.value} {r.metric}\n" in printed for r in again)
    assert [(r.column, r.metric, r.value, r.hours) for r in again] == [
        (r.column, r.metric, r.value, r.hours) for r in records
    ]


def test_a_row_from_corpus_to_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path)
    run = execute(argv_of("fairseq-residuals", *ARGUMENTS), cwd=tmp_path)
    assert run.status == 0, run
    check_records(tmp_path)
    check_average(tmp_path)
    check_nothing_is_done_twice(tmp_path, monkeypatch, capsys)

"""Tables from nothing to their scores, with models of one layer and a handful of updates: one of each kind of model."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from prepared import run
from running import succeed
from sacrebleu.metrics import BLEU
from stand_ins import build

from fairseq_residuals.lab.data.binarize import binarize
from fairseq_residuals.lab.data.synthetic import make_corpus
from fairseq_residuals.lab.recipes.tables import read_records

SHALLOW = ["model.encoder_layers=1", "model.decoder_layers=1"]
NARROW = [f"model.{stack}_{width}_dim=16" for stack in ("encoder", "decoder") for width in ("embed", "ffn_embed")]
NARROW += [f"model.{stack}_attention_heads=2" for stack in ("encoder", "decoder")]


def stand_in(corpus: str, out: Path) -> None:
    """Prepare a corpus from the files that stand in for the published ones."""
    build(corpus, out.parent / "mirror")
    run(corpus, out / "data" / corpus, out.parent / "mirror")


def reproduced(table: str, row: str, out: Path, *overrides: str) -> None:
    """Run the command, in few updates and where files are temporary."""
    files = [f"--{flag}={out / flag}" for flag in ("data", "out")]
    call = ["reproduce", table, "--rows", row, "--gpus", "0", "--max-update", "6", *files]
    call += ["--results", str(out / "results.csv"), "--override", *overrides]
    succeed("fairseq-residuals", *call, cwd=out.parent)


def check(table: str, row: str, out: Path, columns: set[str], metrics: set[str]) -> None:
    """One row was trained, averaged, scored and recorded."""
    records = read_records(out / "results.csv")
    assert {record.column for record in records} == columns
    assert {(record.table, record.row, record.seed) for record in records} == {(table, row, 1)}
    assert {record.metric for record in records} == metrics
    assert all(math.isfinite(record.value) and record.value >= 0 for record in records)
    (run,) = out.glob("out/*/*/*/*/seed1")
    assert len(list(run.glob("average_*.pt"))) == 1
    assert not list(out.rglob("*.partial"))


def test_translation(tmp_path: Path) -> None:
    out = tmp_path / "out"
    few = ["recipe.variant=tiny", "checkpoint.save_interval_updates=1"]
    reproduced("synthetic/translation", "18L-18L/B2T", out, *SHALLOW, *few)
    check("translation", "18L-18L/B2T", out, {"BLEU"}, {"sacrebleu"})
    corpus = out / "data/cldr_en_de/tiny"
    (log,) = out.rglob("evaluated/*.log")
    hypotheses = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", log.read_text("utf-8"), re.M))
    references = (corpus / "raw/test.de").read_text("utf-8").splitlines()
    score = BLEU().corpus_score([hypotheses[str(i)] for i in range(10)], [references]).score
    (record,) = read_records(out / "results.csv")
    assert record.value == pytest.approx(score, abs=1e-9)
    lines = json.loads((corpus / "prepared.json").read_text())["lines"]
    assert lines == {"train": 100, "valid": 10, "test": 10}


def test_several_languages_are_scored_in_both_directions_of_each_pair(tmp_path: Path) -> None:
    """Of Table 4 of ResiDual's paper, on random text that stands in for OPUS-100."""
    out = tmp_path / "out"
    stand_in("opus100", out)
    few = ["optimization.update_freq=[1]", "checkpoint.save_interval_updates=1", "dataset.num_workers=0"]
    reproduced("resi_dual/table4", "Pre-LN/18", out, *SHALLOW, *NARROW, *few)
    (trained,) = out.glob("out/*/*/*/*/seed1379")
    assert (trained / "checkpoints/checkpoint_last.pt").is_file()
    records = read_records(out / "results.csv")
    assert {(record.row, record.column, record.metric) for record in records} == {
        ("Pre-LN/18", column, "sacrebleu") for column in ("EX", "XE")
    }
    pairs = ["en-de", "de-en", "en-fr", "fr-en"]
    assert sorted(log.name.split(".")[1].rpartition("-")[0] for log in out.rglob("evaluated/*.log")) == sorted(pairs)
    german = next(out.rglob("evaluated/test.en-de-*.log")).read_text("utf-8")
    assert "__de__" in german  # the tag of the target language stands on the source


def test_speech(tmp_path: Path) -> None:
    """Of Table 5 of B2T's paper, on tones that stand in for LibriSpeech."""
    out = tmp_path / "out"
    stand_in("librispeech", out)
    few = ["optimization.update_freq=[1]", "recipe.average.last=2", "dataset.num_workers=0"]
    reproduced("b2t/table5", "12L-6L/Pre-LN", out, *SHALLOW, *NARROW, "model.conv_channels=16", *few)
    check("table5", "12L-6L/Pre-LN", out, {"dev-clean", "dev-other", "test-clean", "test-other"}, {"wer"})


def test_a_language_model(tmp_path: Path) -> None:
    """Of Table 4 of B2T's paper, on other text: what is scored is the perplexity that fairseq-eval-lm printed."""
    out, sizes = tmp_path / "out", {"train": 400, "valid": 40, "test": 50}
    corpus = out / "data/wikitext103"
    (corpus / "text").mkdir(parents=True)
    for split, pairs in make_corpus(sizes).items():
        (corpus / "text" / split).write_text("".join(f"{pair.en}\n" for pair in pairs), encoding="utf-8")
    binarize(
        corpus / "data-bin", ["--only-source", *(f"--{split}pref={corpus / 'text' / split}" for split in sizes)], 1
    )
    (corpus / "prepared.json").write_text("{}")
    small = ["decoder_layers=1", "decoder_attention_heads=2", "adaptive_input_cutoff='100,200'"]
    small += ["adaptive_softmax_cutoff='100,200'"]
    small += [f"decoder_{width}_dim=16" for width in ("embed", "ffn_embed", "input", "output")]
    few = ["optimization.update_freq=[2]", "recipe.average.last=2"]
    reproduced("b2t/table4", "6L/Post-LN", out, *(f"model.{setting}" for setting in small), *few)
    check("table4", "6L/Post-LN", out, {"Valid", "Test"}, {"ppl_context_0", "ppl_context_960"})
    records = read_records(out / "results.csv")
    printed = {}
    for log in out.rglob("evaluated/*.log"):
        text = log.read_text("utf-8")
        window = re.search(r"'context_window': (\d+)", text)[1]
        perplexity = re.search(r"Loss \(base 2\): \S+, Perplexity: (\S+)", text)[1]
        printed[log.name.partition("-")[0].capitalize(), f"ppl_context_{window}"] = float(perplexity)
    assert {(r.column, r.metric): pytest.approx(r.value, rel=0.01) for r in records} == printed
    assert printed["Valid", "ppl_context_0"] != printed["Test", "ppl_context_0"]

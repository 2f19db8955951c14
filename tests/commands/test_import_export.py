"""``fairseq-residuals import`` and ``export``, and what fairseq's own commands make of the files that they write."""

from __future__ import annotations

import argparse
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from running import argv_of, assert_one_sentence, execute, load, succeed
from tiny_jobs import SAVE_EVERY, TRANSLATION, UPDATES, without_plugin

LONGEST = 30
SEARCH = ("--beam", "5", "--min-len", "0", "--max-len-b", str(LONGEST))


def write_as_the_b2t_repository_does(source: Path, target: Path) -> None:
    """A fork of fairseq 0.9: flat settings with its own flags, no output matrix that is the embedding."""
    state = load(source)
    args = argparse.Namespace(**vars(state.pop("cfg")["model"]))
    for name in [name for name in vars(args) if "residual" in name or "word_dropout" in name]:
        delattr(args, name)
    args.arch, args.residual_bottom_to_top, args.no_layer_norm = "transformer", True, False
    args.left_pad_source = "True"
    args.optimizer, args.criterion = "adam", "label_smoothed_cross_entropy"
    state["model"] = {
        name.replace("decoder.embed_positions.", "decoder.embed_positions_original."): value
        for name, value in state["model"].items()
        if name != "decoder.output_projection.weight"
    }
    state["args"] = args
    del state["extra_state"]["metrics"], state["task_state"], state["criterion"]
    torch.save(state, target)


@pytest.fixture(scope="module")
def imported(trained, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("imported")
    write_as_the_b2t_repository_does(trained(TRANSLATION)[0] / f"checkpoint_1_{SAVE_EVERY}.pt", folder / "theirs.pt")
    files = (folder / "theirs.pt", folder / "ours.pt")
    run = succeed("fairseq-residuals", "import", "--from", "b2t", *files)
    assert run.out.splitlines()[0] == "encoder: b2t; decoder: b2t"
    assert "parameters alone: training begins at update 0, with a new optimizer" in run.out
    assert run.out.splitlines()[-1] == f"wrote {files[1]}"
    return files[1]


def test_an_imported_checkpoint_trains_on(imported, trained, data_of, tmp_path):
    """From its parameters, as a run does that is given those of the plugin's own checkpoint alone."""
    original = trained(TRANSLATION)[0] / f"checkpoint_1_{SAVE_EVERY}.pt"
    reset = ("--reset-optimizer", "--reset-lr-scheduler", "--reset-dataloader", "--reset-meters")
    runs = []
    for file, more in ((imported, ()), (original, reset)):
        flags = TRANSLATION.long_run(data_of(TRANSLATION), tmp_path / str(len(runs)))
        runs.append(succeed("fairseq-train", *flags, "--restore-file", file, *more))
    assert runs[0].updates == runs[1].updates and len(runs[0].updates) == UPDATES


@pytest.fixture(scope="module")
def exported(data_of, tmp_path_factory) -> tuple[Path, Path]:
    """A model that has learned enough to end its sentences: the plugin's checkpoint, and the stock one."""
    folder = tmp_path_factory.mktemp("exported")
    criterion = ("--criterion", "chunked_label_smoothed_cross_entropy")  # which only the plugin has
    job = replace(TRANSLATION, arch="transformer_deepnet_6l", criterion=criterion)
    length = ("--max-update", "300", "--no-epoch-checkpoints", "--disable-validation", "--dropout", "0")
    succeed("fairseq-train", *job.train_flags(data_of(job), folder), *job.optimizer, *length)
    files = folder / "checkpoint_last.pt", folder / "stock.pt"
    run = succeed("fairseq-residuals", "export", "--to", "fairseq", *files)
    assert run.out.splitlines()[0] == "architecture of fairseq's own: transformer"
    assert "encoder: the factor on its first residual is in its embedding, and in a table of positions" in run.out
    return files


@pytest.fixture(scope="module")
def stock_hypotheses(exported, data_of) -> dict[int, list[str]]:
    flags = without_plugin(TRANSLATION.use_flags(data_of(TRANSLATION), exported[1]))
    return succeed("fairseq-generate", *flags, *SEARCH).hypotheses()["H"]


def test_fairseq_generates_the_same_from_what_is_exported(exported, stock_hypotheses, data_of):
    flags = TRANSLATION.use_flags(data_of(TRANSLATION), exported[0])
    expected = succeed("fairseq-generate", *flags, *SEARCH).hypotheses()["H"]
    assert {i: words for i, (_, words) in stock_hypotheses.items()} == {i: words for i, (_, words) in expected.items()}
    for i, (score, _) in expected.items():
        assert float(stock_hypotheses[i][0]) == pytest.approx(float(score), abs=1e-5)


def test_ctranslate2_translates_the_same(exported, stock_hypotheses, data_of, tmp_path):
    """Its own converter, on the stock checkpoint; its scores are natural logarithms, fairseq's have base 2."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    from ctranslate2.converters import FairseqConverter

    data = data_of(TRANSLATION)
    # the settings in a checkpoint of fairseq are a Namespace, which torch loads only where it is told to
    converter = FairseqConverter(
        str(exported[1]), str(data), source_lang="s", target_lang="t", unsafe_deserialization=True
    )
    converter.convert(str(tmp_path / "model"))
    translator = ctranslate2.Translator(str(tmp_path / "model"), device="cpu", intra_threads=1)
    sentences = [line.split() for line in (data / "text" / "test.s").read_text().splitlines()]
    results = translator.translate_batch(
        sentences, beam_size=5, min_decoding_length=0, max_decoding_length=LONGEST + 1, return_scores=True
    )
    ended = {i: h for i, h in stock_hypotheses.items() if len(h[1].split()) < LONGEST}
    assert len(ended) >= 4
    for i, (score, words) in ended.items():
        assert results[i].hypotheses[0] == words.split()
        assert results[i].scores[0] == pytest.approx(float(score) * math.log(2), abs=1e-4)


def test_nothing_is_written_where_it_is_refused(trained, tmp_path):
    source = tmp_path / "b2t.pt"
    shutil.copy(trained(TRANSLATION)[0] / "checkpoint_last.pt", source)
    run = execute(argv_of("fairseq-residuals", "export", "--to", "fairseq", source, tmp_path / "out.pt"))
    assert_one_sentence(run, "cannot be exported", "x = LN(x + F(x))")
    assert [path.name for path in tmp_path.iterdir()] == ["b2t.pt"]

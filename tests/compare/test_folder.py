"""``--data``: a folder that fairseq-preprocess has made, for translation or for a language model."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.compare.cells import read_results
from fairseq_residuals.lab.compare.tasks import data_digest, folder_task, make_copy, unigram_loss_of
from fairseq_residuals.lab.data.binarize import binarize

WORDS = ["a", "b", "a", "c", "a", "b", "a", "a"]
TINY = ["--depth", "1", "--dim", "16", "--updates", "8", "--tokens", "300", "--dry-run"]


def language_model(folder: Path, trained_on: int = 60) -> Path:
    for split, lines in (("train", trained_on), ("valid", 20)):
        (folder / split).write_text(f"{' '.join(WORDS)}\n" * lines)
    binarize(folder / "lm", ["--only-source", f"--trainpref={folder}/train", f"--validpref={folder}/valid"], 1)
    return folder / "lm"


@pytest.mark.parametrize(("lines", "tokens"), [(60, "300"), (600, "2,400")])
def test_a_language_model(lines: int, tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 540 tokens an update reads one of three blocks; of 5,400 nine of 22 in three passes, as do three updates."""
    flags = ["--data", str(language_model(tmp_path, lines)), "--out", str(tmp_path), *TINY]
    assert main(["compare", "b2t", *flags, "--tokens", tokens.replace(",", "")]) == 0
    read = f"8 updates of up to {tokens} tokens, which read the training data 2.67 times."
    assert f"language model on lm. 1 layers, 16 wide, {read}" in capsys.readouterr().out


def test_blocks_of_today_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rotary positions, SwiGLU and RMSNorm show in what a checkpoint holds, and in what it does not."""
    flags = ["b2t", "--data", str(language_model(tmp_path)), "--blocks", "today", "--keep-checkpoints", *TINY[:-1]]
    flags += ["--rates", "0.01", "--seeds", "1", "--baseline-seeds", "1", "--jobs", "2", "--out", str(tmp_path / "out")]
    assert main(["compare", *flags]) == 0
    assert "language model on lm, of today's blocks. 1 layers" in capsys.readouterr().out
    (runs,) = (tmp_path / "out").glob("lm-*/runs.csv")
    assert [len(result.points) for result in read_results(runs)] == [8, 8]
    (path,) = runs.parent.glob("runs/compare/language_model/pre_ln-*/seed1/checkpoints/checkpoint_last.pt")
    shapes = {name: tuple(w.shape) for name, w in torch.load(path, weights_only=False)["model"].items()}
    assert not [name for name in shapes if name.endswith("bias") or "embed_positions" in name]
    (twice, wide), (narrow, once) = (shapes[f"model.decoder.layers.0.fc{i}.weight"] for i in (1, 2))
    assert wide == narrow == 16 and twice == 2 * once  # a gate beside what it lets through
    assert abs(3 * once - 2 * 64) < 12  # as many numbers as fairseq's two matrices have, up to a multiple of eight
    assert main(["gradients", "--checkpoint", str(path), "--data", flags[2], "--out", str(tmp_path / "seen")]) == 0
    assert "| Pre-LN |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "flags", "said"),
    [
        ("b2t", ["--task", "copy", "--blocks", "today"], "--blocks today is for language models"),
        (
            "b2t",
            ["--blocks", "today", "--override", "model.dropout=0", "model.attention_dropout=0.9"],
            "--override model.attention_dropout: of the model, --blocks today takes",
        ),
        ("b2t/norm=dyt", ["--blocks", "today"], "b2t/norm=dyt: --blocks today has RMSNorm in every entry"),
        ("b2t", ["--score"], "--score: {}/lm has no test set"),
    ],
)
def test_what_blocks_of_today_and_scores_refuse(
    entry: str, flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [] if "--task" in flags else ["--data", str(language_model(tmp_path))]
    assert main(["compare", entry, *data, "--out", str(tmp_path / "out"), *TINY, *flags]) == 1
    assert said.format(tmp_path) in capsys.readouterr().err
    assert (tmp_path / "out").exists() == ("norm" in entry)  # which a package of today's blocks knows


def test_the_unigram_loss_by_hand(tmp_path: Path) -> None:
    assert unigram_loss_of(language_model(tmp_path)) == pytest.approx(unigram_loss(WORDS))


def unigram_loss(line: list[str]) -> float:
    """60 lines of training, one count more for each of the dictionary's words, which are padded to a multiple of 8."""
    counts = Counter([*line, "</s>"])
    total = 60 * counts.total() + 8
    return sum(n * -math.log2((60 * n + 1) / total) for n in counts.values()) / counts.total()


def test_two_dictionaries_and_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their embeddings are not shared, and what SentencePiece cut is joined for a score; either may be the target."""
    prefixes: list[str] = []
    for split in ("train", "valid"):
        (tmp_path / f"{split}.src").write_text("a a a c\n" * 60)
        (tmp_path / f"{split}.tgt").write_text("\u2581A \u2581B \u2581A C\n" * 60)
        prefixes += [f"--{split}pref={tmp_path / split}"]
    folder = tmp_path / "data-bin"
    binarize(folder, ["--source-lang", "src", "--target-lang", "tgt", *prefixes], 1)
    assert "recipe.evaluate.flags.post_process=sentencepiece" in folder_task(folder).overrides
    flags = ["--override", "task.source_lang=tgt", "task.target_lang=src", *TINY]
    assert main(["compare", "b2t", "--data", str(folder), "--out", str(tmp_path / "out"), *flags]) == 0
    assert f"unigram loss ({unigram_loss(['a', 'a', 'a', 'c']):.3f} bits)" in capsys.readouterr().out


def test_the_digest_is_of_what_the_files_hold(tmp_path: Path) -> None:
    for name in ("one", "other"):
        make_copy(tmp_path / name / "data-bin")
    one, other = (tmp_path / name / "data-bin" for name in ("one", "other"))
    assert data_digest(one) == data_digest(other)
    with (other / "valid.src-tgt.tgt.bin").open("ab") as file:
        file.write(b"\0")
    assert data_digest(one) != data_digest(other)


def test_a_folder_that_moved_and_one_with_another_test_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_copy(tmp_path / "one" / "data-bin")
    task = folder_task(tmp_path / "one" / "data-bin")
    assert not task.is_language_model and {"task.source_lang=src", "task.target_lang=tgt"} < set(task.overrides)
    flags = ["--out", str(tmp_path / "out"), *TINY]
    assert main(["compare", "b2t", "--data", str(tmp_path / "one" / "data-bin"), *flags]) == 0
    assert "src to tgt of data-bin" in capsys.readouterr().out
    (tmp_path / "one").rename(tmp_path / "two")
    moved = tmp_path / "two" / "data-bin"
    assert main(["compare", "b2t", "--data", str(moved), *flags]) == 0
    (first,) = (tmp_path / "out/data").glob("folder-*/data-bin")
    assert first.resolve() == moved
    for name in ("kept", "three"):
        shutil.copytree(moved, tmp_path / name / "data-bin")
    (moved / "valid.src-tgt.tgt.bin").write_bytes(b"")  # no longer what was linked, and kept is
    assert main(["compare", "b2t", "--data", str(tmp_path / "kept" / "data-bin"), *flags]) == 0
    assert first.resolve() == tmp_path / "kept" / "data-bin"
    with (tmp_path / "three" / "data-bin" / "test.src-tgt.tgt.bin").open("ab") as file:
        file.write(b"\0")
    assert main(["compare", "b2t", "--data", str(tmp_path / "three" / "data-bin"), *flags]) == 0
    assert len(list((tmp_path / "out").glob("data/folder-*"))) == len(list((tmp_path / "out").glob("data-bin-*"))) == 2


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("a b", "", "line 2 of {}/test.src-tgt.tgt.idx is empty"),
        ("a " * 1024, "a b", "line 2 of {}/test.src-tgt.src.idx has 1025 tokens; fairseq-generate takes 1024"),
        ("a b", "a " * 1024, "line 2 of {}/test.src-tgt.tgt.idx has 1025 tokens; fairseq-generate takes 1024"),
        ("", "a " * 1023, ""),
    ],
)
def test_a_pair_that_cannot_be_scored_is_refused_before_training(
    source: str, target: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would end the comparison after the first run: sacreBLEU and fairseq-generate refuse it.

    One of training may be empty, as here are all of its first batch.
    """
    prefixes: list[str] = []
    for split, pair in (("train", ("\n" * 9, "\n" * 9)), ("valid", ("a b", "a b")), ("test", (source, target))):
        for side, line in zip(("src", "tgt"), pair, strict=True):
            (tmp_path / f"{split}.{side}").write_text(f"a b\n{line}\n" * 30)
        prefixes += [f"--{split}pref={tmp_path / split}"]
    folder = tmp_path / "data-bin"
    binarize(folder, ["--source-lang", "src", "--target-lang", "tgt", *prefixes], 1)
    flags = ["b2t", "--data", str(folder), "--out", str(tmp_path / "out"), "--score", *TINY, "--tokens", "30"]
    assert main(["compare", *flags]) == bool(said)
    assert said.format(folder) in capsys.readouterr().err

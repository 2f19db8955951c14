"""The corpora that are made on the spot: as much as is stated, the same every time, nothing in two splits."""

from __future__ import annotations

from pathlib import Path

import pytest
from prepared import Prepared

from fairseq_residuals.lab.data.corpora import cldr, find_corpus
from fairseq_residuals.lab.data.corpus import Job, prepare
from fairseq_residuals.lab.data.download import Downloads

NAMES = ("cldr_en_de", "cldr_multilingual")


@pytest.mark.parametrize("name", NAMES)
def test_the_same_is_made_every_time(name: str, tmp_path: Path) -> None:
    first, again = (prepared(name, tmp_path / folder) for folder in ("first", "again"))
    assert first.summary["stand_in"] is False
    assert first.summary["lines"] == again.summary["lines"]
    files = {k: v for k, v in first.summary["sha256"].items() if not k.endswith("config.yaml")}
    assert files
    assert files == {k: v for k, v in again.summary["sha256"].items() if not k.endswith("config.yaml")}


def prepared(name: str, folder: Path) -> Prepared:
    prepare(find_corpus(name), "tiny", Job(folder, Downloads(folder / "downloads"), 1))
    return Prepared(folder, folder)


def test_translation_has_the_pairs_that_are_stated_and_no_split_has_another_s(tmp_path: Path) -> None:
    found = prepared("cldr_en_de", tmp_path)
    assert found.summary["lines"] == {"train": 100, "valid": 10, "test": 10}
    for language in ("en", "de"):
        splits = [found.words(f"text/{split}.{language}") for split in ("train", "valid", "test")]
        assert len(set().union(*splits)) == 120


def test_plain_sentences_are_only_split_into_subwords(tmp_path: Path) -> None:
    variant = find_corpus("cldr_en_de").variants["plain"]
    assert "not tokenized" in variant.summary
    corpus = cldr.Corpus("cldr_en_de", {"plain": cldr.made_pairs(cldr.PLAIN, 60, 6, 90, "small")})
    prepare(corpus, None, Job(tmp_path, Downloads(tmp_path / "downloads"), 1))
    raw = (tmp_path / "raw/test.de").read_text("utf-8")
    assert (tmp_path / "text/test.de").read_text("utf-8").replace("@@ ", "") == raw


def test_multilingual_text_says_the_same_on_both_sides_and_nothing_in_two_pairs_or_splits(tmp_path: Path) -> None:
    cldr.write_pairs(tmp_path, ("de", "fr"), {"train": 40, "dev": 4, "test": 4})
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    files = {name: (tmp_path / name).read_text("utf-8").splitlines() for name in names}
    said = [line for name, lines in files.items() if name.endswith(".en") for line in lines]
    assert len(said) == len(set(said)) == 2 * (40 + 4 + 4)
    assert len(files) == 2 * 3 * 2
    stream = cldr.said_in(0, ("de", "fr"))
    by_english = {sentence["en"]: sentence for sentence in (next(stream) for _ in said)}
    for name, lines in files.items():
        language = name.rpartition(".")[2]
        english = files[f"{name.removesuffix(language)}en"]
        assert [by_english[line][language] for line in english] == lines

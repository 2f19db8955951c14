"""The corpus that is made on the spot: as much as is stated, the same every time, nothing in two splits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from prepared import Prepared

from fairseq_residuals.lab.data.corpora import cldr, find_corpus
from fairseq_residuals.lab.data.corpus import Job, prepare
from fairseq_residuals.lab.data.download import Downloads


def test_translation_has_what_is_stated_and_no_split_another_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for one who comes meanwhile, and again in a folder whose name begins like a flag."""
    monkeypatch.chdir(tmp_path)
    found, again = Prepared(tmp_path / "found"), Prepared(Path("-again"))
    jobs = [Job(folder, Downloads(folder / "downloads"), 1) for folder in (found.out, found.out, again.out)]
    with ThreadPoolExecutor(2) as pool:
        assert len({*pool.map(partial(prepare, find_corpus("cldr_en_de"), "tiny"), jobs[:2])}) == 1
    prepare(find_corpus("cldr_en_de"), "tiny", jobs[2])
    assert found.summary["sha256"] == again.summary["sha256"] != {}
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

"""Each parallel corpus from its stand-in: counts, text, vocabulary and binary data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from prepared import Prepared, prepare_stand_in
from published_layouts import random_lines
from stand_ins import NEWS

from fairseq_residuals.lab.data.corpora import PUBLISHED, find_corpus


def tokenized(lines: list[str]) -> list[str]:
    """Moses tokens of the stand-ins' text: words, a comma, a period."""
    return [line.replace(",", " ,").replace(".", " .") for line in lines]


def check_binarized(found: Prepared, pair: str, subsets: dict[str, int], limited: bool = False) -> None:
    """fairseq reads the text, and prepared.json counts it; words outside a limited dictionary are <unk>."""
    assert found.summary["lines"] == subsets
    for subset, count in subsets.items():
        for language in pair.split("-"):
            text = [line.split() for line in found.lines(f"text/{subset}.{language}")]
            read = [line.split() for line in found.binarized(subset, pair, language)]
            assert len(read) == count
            known = found.dictionary(language).indices
            assert read == [[w if w in known else "<unk>" for w in line] for line in text]
            if subset == "train" and not limited:
                assert not any("<unk>" in line for line in read)


def same(found: Prepared, first: str, second: str) -> bool:
    return (found.out / first).read_bytes() == (found.out / second).read_bytes()


def test_wmt14_en_de(tmp_path: Path) -> None:
    """130 pairs, of which three are too long, empty or too unequal; seven test sets, none of them cleaned."""
    found = prepare_stand_in("wmt14_en_de", tmp_path)
    subsets = find_corpus("wmt14_en_de").variants["b2t"].test_sets
    assert list(subsets) == [f"newstest{year}" for year in (2014, 2010, 2011, 2012, 2013, 2015, 2016)]
    assert list(subsets.values()) == ["test", *(f"test{n}" for n in range(1, 7))]
    assert found.summary["test_sets"] == subsets
    counts = {subset: NEWS[name] for name, subset in subsets.items()}
    check_binarized(found, "en-de", {"train": 127, "valid": 7, **counts})
    for name, subset in subsets.items():
        for language, lines in random_lines(name, NEWS[name], "en", "de").items():
            assert found.lines(f"raw/{name}.{language}") == lines
            assert found.words(f"text/{subset}.{language}") == tokenized(lines)
    europarl = random_lines("europarl", 60, "en", "de")["de"][3:]
    assert found.words("text/train.de")[:57] == tokenized(europarl)
    assert len(found.lines("codes/codes")) == 1 + 60
    assert same(found, "data-bin/dict.en.txt", "data-bin/dict.de.txt")
    assert "downloads" not in str(found.summary["sha256"])


def test_wmt14_en_de_dlcl_keeps_words_that_occur_five_times(tmp_path: Path) -> None:
    found = prepare_stand_in("wmt14_en_de", tmp_path, "dlcl")
    counts = Counter(
        word for lang in ("en", "de") for line in found.lines(f"text/train.{lang}") for word in line.split()
    )
    words = {word for word in found.dictionary("en").symbols[4:] if not word.startswith("madeupword")}
    assert words == {word for word, count in counts.items() if count >= 5}
    assert words < counts.keys()


def test_wmt14_en_de_lstm_drops_by_subwords_only(tmp_path: Path) -> None:
    """The pair with 10 words against 1 stays, the empty one goes, and 81 words are few enough."""
    found = prepare_stand_in("wmt14_en_de", tmp_path, "lstm")
    assert found.summary["lines"]["train"] == 129
    years = [random_lines(name, NEWS[name], "en", "de")["en"] for name in ("newstest2012", "newstest2013")]
    assert found.words("text/valid.en") == tokenized(years[0] + years[1])


def test_wmt17_en_de(tmp_path: Path) -> None:
    """Of 210 pairs the 100th and the 200th are for validation; the 200th is more than 1.5 times as long in German."""
    found = prepare_stand_in("wmt17_en_de", tmp_path)
    check_binarized(found, "en-de", {"train": 208, "valid": 1, "test": 8})
    assert found.words("text/valid.en") == tokenized(random_lines("europarl", 100, "en", "de")["en"][99:])


def test_wmt14_en_fr(tmp_path: Path) -> None:
    found = prepare_stand_in("wmt14_en_fr", tmp_path)
    check_binarized(found, "en-fr", {"train": 1400, "valid": 13, "test": 8})


def test_wmt15_cs_en(tmp_path: Path) -> None:
    found = prepare_stand_in("wmt15_cs_en", tmp_path)
    check_binarized(found, "cs-en", {"train": 120, "valid": 7, "test": 9})
    assert found.words("text/train.cs")[90:] == tokenized(random_lines("czeng", 30, "cs", "en")["cs"])
    public = prepare_stand_in("wmt15_cs_en", tmp_path, "public")
    assert public.summary["lines"]["train"] == 90


def test_iwslt14_de_en(tmp_path: Path) -> None:
    """52 lines remain of 55: titles and descriptions stay. The 23rd and the 46th are for validation."""
    found = prepare_stand_in("iwslt14_de_en", tmp_path)
    check_binarized(found, "de-en", {"train": 50, "valid": 2, "test": 15})
    talks = random_lines("talks", 50, "de", "en")["en"]
    assert found.words("text/train.en")[:3] == ["ein titel", "ted talk : so it is", tokenized(talks)[0].lower()]
    assert found.words("text/valid.en") == [line.lower() for line in tokenized([talks[20], talks[43]])]
    names = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    test = [line for number, name in enumerate(names, 1) for line in random_lines(name, number, "de", "en")["de"]]
    assert found.lines("raw/test.de") == test
    assert found.words("text/test.de") == [line.lower() for line in tokenized(test)]
    separate = prepare_stand_in("iwslt14_de_en", tmp_path, "separate")
    assert same(separate, "text/train.de", "../out-None/text/train.de")
    assert same(found, "data-bin/dict.de.txt", "data-bin/dict.en.txt")
    assert not same(separate, "data-bin/dict.de.txt", "data-bin/dict.en.txt")


def test_joeynmt_de_en(tmp_path: Path) -> None:
    """The dictionary is the exercise's, in its order, and four symbols; the codes are applied."""
    found = prepare_stand_in("joeynmt_de_en", tmp_path)
    check_binarized(found, "de-en", {"train": 30, "valid": 5, "test": 6}, limited=True)
    assert found.dictionary("en").symbols[4:] == [".", ",", "kan@@", "ing", "k@@"]
    assert len(found.dictionary("de")) == 9
    assert any("kan@@ ing" in line for line in found.lines("text/train.en"))


def test_zh_en(tmp_path: Path) -> None:
    """English is tokenized and Chinese is not; each has its own codes and dictionary; references stay raw."""
    found = prepare_stand_in("zh_en", tmp_path)
    check_binarized(found, "zh-en", {"train": 60, "valid": 5, "test": 3, "test1": 4, "test2": 6})
    lines = random_lines("mt08", 6, "zh", "en")
    assert found.words("text/test2.zh") == lines["zh"]
    assert found.words("text/test2.en") == tokenized([f"0 {line}" for line in lines["en"]])
    for number, suffix in enumerate(("en", "en1", "en2", "en3")):
        assert found.lines(f"raw/mt08.{suffix}") == [f"{number} {line}" for line in lines["en"]]
    assert not same(found, "codes/codes.zh", "codes/codes.en")
    large = prepare_stand_in("zh_en", tmp_path, "large")
    check_binarized(large, "zh-en", {"train": 50, "valid": 4, "test": 4, "test1": 4})


def test_gigaword(tmp_path: Path) -> None:
    """The unknown word has one name, is not split, and is fairseq's own."""
    found = prepare_stand_in("gigaword", tmp_path)
    check_binarized(found, "src-tgt", {"train": 60, "valid": 5, "test": 6}, limited=True)
    for split in ("train", "valid", "test"):
        for language in ("src", "tgt"):
            text = found.lines(f"text/{split}.{language}")
            assert all(line.split()[0] == "<unk>" and "UNK" not in line for line in text)
    assert "<unk>" not in found.dictionary("src").symbols[4:]
    assert found.words("text/test.src")[0].endswith(random_lines("test", 6, "src", "tgt")["src"][0].lower())


@pytest.mark.parametrize("name", PUBLISHED)
def test_descriptions_are_complete(name: str) -> None:
    """Every file has an address or says where it comes from; no name stands for two files."""
    corpus = find_corpus(name)
    assert corpus.name == name
    for variant in corpus.variants.values():
        names = [source.name for source in variant.sources]
        assert len(names) == len(set(names)) > 0
        for source in variant.sources:
            assert all(url.startswith("https://") for url in source.urls)
            assert source.urls or source.terms
            assert not source.digest or len(source.digest.partition(":")[2]) in (32, 40, 64)

"""Small archives with the layout of the published ones, and what a preparation has to cope with in them."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from published_layouts import Files, StandIn, plain, random_lines, sgm, text

DE, FR, CS = ("en", "de"), ("en", "fr"), ("cs", "en")
NEWS = {"newstest2010": 4, "newstest2011": 5, "newstest2012": 6, "newstest2013": 7, "newstest2014": 8}
NEWS |= {"newstest2015": 9, "newstest2016": 10}


def wmt14_en_de() -> StandIn:
    """Return training data with a rare word and what cleaning must drop.

    An empty side, a side of 81 words, one of ten times as many words.
    """
    europarl = random_lines("europarl", 60, *DE)
    for number, (english, german) in enumerate([("", "Leer."), ("so " * 81, "so " * 70), ("one", "so " * 10)]):
        europarl["en"][number], europarl["de"][number] = english, german
    crawl = {language: [f"{lines[0]} Xq", *lines[1:]] for language, lines in random_lines("crawl", 40, *DE).items()}
    dev: Files = {}
    for name, count in list(NEWS.items())[:4]:
        dev |= plain(f"dev/{name}.{{lang}}", random_lines(name, count, *DE))

    def tested(name: str, folder: str, pair: str) -> Files:
        return sgm(f"{folder}/{name}-{pair}-{{side}}.{{lang}}.sgm", random_lines(name, NEWS[name], *DE))

    archives = {
        "europarl-v7-de-en.tgz": plain("europarl-v7.de-en.{lang}", europarl),
        "training-parallel-commoncrawl.tgz": plain("commoncrawl.de-en.{lang}", crawl),
        "training-parallel-nc-v11.tgz": plain(
            "training-parallel-nc-v11/news-commentary-v11.de-en.{lang}", random_lines("nc", 30, *DE)
        ),
        "wmt16-dev.tgz": dev,
        "wmt14-test-full.tgz": tested("newstest2014", "test-full", "deen"),
        "wmt15-test.tgz": tested("newstest2015", "test", "ende"),
        "wmt16-test.tgz": tested("newstest2016", "test", "ende"),
    }
    return StandIn(archives, {"merges": 60, "lines": {**NEWS, "train": 130}})


def wmt17_en_de() -> StandIn:
    """Return 210 pairs: two go to validation, the last too unequal for the ratio of 1.5 but for no other."""
    europarl = random_lines("europarl", 100, *DE)
    commentary = random_lines("nc", 60, *DE)
    commentary["de"][-11] = "Kan " * 40  # pair 200
    archives = {
        "training-parallel-europarl-v7.tgz": plain("training/europarl-v7.de-en.{lang}", europarl)
        | plain("training/europarl-v7.fr-en.{lang}", random_lines("fr", 3, "fr", "en")),
        "training-parallel-commoncrawl.tgz": plain("commoncrawl.de-en.{lang}", random_lines("crawl", 50, *DE)),
        "training-parallel-nc-v12.tgz": plain("training/news-commentary-v12.de-en.{lang}", commentary),
        "wmt14-test-full.tgz": sgm(
            "test-full/newstest2014-deen-{side}.{lang}.sgm", random_lines("newstest2014", 8, *DE)
        ),
    }
    return StandIn(archives, {"merges": 60, "lines": {"newstest2014": 8}})


def wmt14_en_fr() -> StandIn:
    """Return 1,400 pairs."""
    giga = plain("giga-fren.release2.fixed.{lang}", random_lines("giga", 1000, *FR))
    dev = plain("dev/newstest2012.{lang}", random_lines("newstest2012", 6, *FR))
    dev |= plain("dev/newstest2013.{lang}", random_lines("newstest2013", 7, *FR))
    test = sgm("test-full/newstest2014-fren-{side}.{lang}.sgm", random_lines("newstest2014", 8, *FR))
    archives = {
        "training-parallel-europarl-v7.tgz": plain("training/europarl-v7.fr-en.{lang}", random_lines("ep", 100, *FR)),
        "training-parallel-commoncrawl.tgz": plain("commoncrawl.fr-en.{lang}", random_lines("crawl", 100, *FR)),
        "training-parallel-un.tgz": plain("un/undoc.2000.fr-en.{lang}", random_lines("un", 100, *FR)),
        "training-parallel-nc-v9.tgz": plain("training/news-commentary-v9.fr-en.{lang}", random_lines("nc", 100, *FR)),
        "training-giga-fren.tar": {f"{name}.gz": gzip.compress(contents) for name, contents in giga.items()},
        "wmt14-dev.tgz": dev,
        "wmt14-test-full.tgz": test,
    }
    return StandIn(archives, {"merges": 60, "lines": {"newstest2014": 8, "train": 1400}})


def wmt15_cs_en() -> StandIn:
    """Return what can be downloaded, and what a user supplies."""
    test = sgm("test/newstest2015-csen-{side}.{lang}.sgm", random_lines("newstest2015", 9, *CS))
    archives = {
        "training-parallel-europarl-v7.tgz": plain("training/europarl-v7.cs-en.{lang}", random_lines("ep", 30, *CS)),
        "training-parallel-commoncrawl.tgz": plain("commoncrawl.cs-en.{lang}", random_lines("crawl", 30, *CS)),
        "training-parallel-nc-v10.tgz": plain("news-commentary-v10.cs-en.{lang}", random_lines("nc", 30, *CS)),
        "czeng-1.0/": plain("train.{lang}", random_lines("czeng", 30, *CS)),
        "wmt15-dev-v2.tgz": plain("dev/newstest2013.{lang}", random_lines("newstest2013", 7, *CS)),
        "wmt15-test.tgz": test,
    }
    return StandIn(archives, {"merges": 60, "lines": {"valid": 7, "newstest2015": 9}})


def iwslt14_de_en() -> StandIn:
    """Return a talk that opens with tags: some are dropped, two only lose their tags; 52 lines, two for valid."""
    files: Files = {}
    for language, lines in random_lines("talks", 50, "de", "en").items():
        head = ["<url>http://x</url>", "<keywords>a, b</keywords>", "<talkid>1</talkid>", "<title>Ein Titel</title>"]
        head += ["<description>TED Talk: so it is</description>"]
        files[f"de-en/train.tags.de-en.{language}"] = text([*head, *lines])
    for number, name in enumerate(("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"), 1):
        for language, lines in random_lines(name, number, "de", "en").items():
            body = [f'<seg id="{i}"> {line} </seg>' for i, line in enumerate(lines, 1)]
            files[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = text(["<?xml?>", "<mteval>", *body, "</mteval>"])
    return StandIn({"iwslt14-de-en.tgz": files}, {"merges": 60, "lines": {"train": 52, "test": 15}})


def joeynmt_de_en() -> StandIn:
    """Return a vocabulary like the exercise's own: it need not be what occurs in the text."""
    files: Files = {"data/codes3200.bpe": b"#version: 0.2\nk a\nka n\ni n\nin g</w>\n"}
    for name, count in {"train": 30, "dev": 5, "test": 6}.items():
        lines = random_lines(name, count, "de", "en")
        spaced = {lang: [s.replace(",", " ,").replace(".", " .") for s in lines[lang]] for lang in lines}
        files |= plain(f"data/{name}.{{lang}}", spaced)
    models = {"shared_models/joint-vocab.txt": b".\n,\nkan@@\ning\nk@@\n"}
    described = {"lines": {"train": 30, "valid": 5, "test": 6}}
    return StandIn({"joeynmt-data.tar.gz": files, "joeynmt-shared_models.tar.gz": models}, described)


def zh_en() -> StandIn:
    """Return both folders that a user supplies; tests of the small one have four references."""
    small = plain("train.{lang}", random_lines("train", 60, "zh", "en"))
    for name, count in {"mt04": 3, "mt05": 4, "mt06": 5, "mt08": 6}.items():
        lines = random_lines(name, count, "zh", "en")
        small[f"{name}.zh"] = text(lines["zh"])
        for reference in range(4):
            small[f"{name}.en{reference}"] = text([f"{reference} {line}" for line in lines["en"]])
    large = plain("train.{lang}", random_lines("large", 50, "zh", "en"))
    for name in ("newsdev2017", "newstest2017", "newstest2018"):
        large |= plain(f"{name}.{{lang}}", random_lines(name, 4, "zh", "en"))
    return StandIn({"zh_en-small/": small, "zh_en-large/": large}, {"merges": 40})


def opus100() -> StandIn:
    """Return three pairs, one of which has no test set, and a pair for zero-shot tests only."""
    top = "opus-100-corpus/v1.0"
    files: Files = {}
    for pair, splits in {
        "de-en": ("train", "dev", "test"),
        "en-fr": ("train", "dev", "test"),
        "an-en": ("train",),
    }.items():
        for split in splits:
            count = {"train": 60, "dev": 4, "test": 5}[split]
            names = random_lines(f"{pair}{split}", count, *pair.split("-"))
            files |= plain(f"{top}/supervised/{pair}/opus.{pair}-{split}.{{lang}}", names)
    files |= plain(f"{top}/zero-shot/de-fr/opus.de-fr-test.{{lang}}", random_lines("zero", 5, "de", "fr"))
    return StandIn({"opus-100-corpus-v1.0.tar.gz": files}, {"pieces": 110})


def gigaword() -> StandIn:
    """Return text whose unknown words are <unk> in training, UNK in the test; digits are '#'."""
    org: Files = {}
    sizes = {"train": 60, "dev": 5, "test": 6}
    for name, count in sizes.items():
        lines = random_lines(name, count, "src", "tgt")
        unknown = "UNK" if name == "test" else "<unk>"
        marked = {lang: [f"{unknown} ##.# {line.lower()}" for line in lines[lang]] for lang in lines}
        org |= plain(f"org_data/{name}.{{lang}}.txt", marked)
    return StandIn({"gigaword-org_data": org}, {"merges": 40, "lines": {"train": 60, "valid": 5, "test": 6}})


def wikitext103() -> StandIn:
    """Return headings, blank lines, and a blank before and after each line's words."""
    sizes = {"train": 40, "valid": 6, "test": 8}
    files = {}
    for split, count in sizes.items():
        lines = [" \n", " = Heading = \n", " \n"]
        lines += [f" {line.replace('.', ' .')} \n" for line in random_lines(split, count - 3, "en")["en"]]
        files[f"wikitext-103/wiki.{split}.tokens"] = "".join(lines).encode()
    return StandIn({"wikitext-103-v1.zip": files})


def flac(seconds: float, pitch: int) -> bytes:
    """Return a tone with noise as 16 kHz FLAC."""
    time = np.arange(int(16000 * seconds)) / 16000
    noise = np.random.default_rng(pitch).normal(scale=0.01, size=time.shape)
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.3 * np.sin(2 * np.pi * pitch * time) + noise, 16000, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


SPLITS = {"train-clean-100": 3, "train-clean-360": 4, "train-other-500": 5}
SPLITS |= {"dev-clean": 1, "dev-other": 2, "test-clean": 1, "test-other": 2}


def librispeech() -> StandIn:
    """Return utterances, of which number i of a split lasts 0.15 + 0.01 i seconds; numbers have leading zeros."""
    archives: dict[str, Files] = {}
    for number, (split, count) in enumerate(SPLITS.items()):
        chapter = f"{84 + number}-121123"
        where = f"LibriSpeech/{split}/{84 + number}/121123"
        sentences = random_lines(split, count, "en")["en"]
        words = [f"{chapter}-{i:04d} {s.upper().strip('.').replace(',', '')}" for i, s in enumerate(sentences)]
        files = {f"{where}/{chapter}-{i:04d}.flac": flac(0.15 + 0.01 * i, 200 + 50 * i) for i in range(count)}
        archives[f"{split}.tar.gz"] = files | {f"{where}/{chapter}.trans.txt": text(words)}
    return StandIn(archives, {"pieces": 45})


STAND_INS: dict[str, Callable[[], StandIn]] = {
    function.__name__: function
    for function in (
        wmt14_en_de,
        wmt17_en_de,
        wmt14_en_fr,
        wmt15_cs_en,
        iwslt14_de_en,
        joeynmt_de_en,
        zh_en,
        opus100,
        gigaword,
        wikitext103,
        librispeech,
    )
}


def build(corpus: str, folder: Path) -> StandIn:
    """Write a mirror for a corpus of archives to ``folder``, and return what it is made of."""
    stand_in = STAND_INS[corpus]()
    stand_in.write(folder)
    return stand_in

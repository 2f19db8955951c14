"""WikiText-103, OPUS-100 and LibriSpeech from their stand-ins; CLDR, which is made on the spot."""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import soundfile
import yaml
from fairseq.data.audio.audio_utils import get_features_or_waveform
from fairseq.tasks.speech_to_text import SpeechToTextTask
from prepared import Prepared, prepare_stand_in, run
from published_layouts import random_lines
from stand_ins import SPLITS, build, flac, wikitext103

from fairseq_residuals.lab.data import corpora
from fairseq_residuals.lab.data.corpora import cldr, find_corpus
from fairseq_residuals.lab.data.corpus import Job, prepare
from fairseq_residuals.lab.data.download import Downloads
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.compat.audio import fbank


def test_wikitext103(tmp_path: Path) -> None:
    """The text stays as it is, blank lines and headings included; every word is in the dictionary."""
    found = prepare_stand_in("wikitext103", tmp_path)
    files = wikitext103().archives["wikitext-103-v1.zip"]
    words = set()
    for split, count in {"train": 40, "valid": 6, "test": 8}.items():
        original = files[f"wikitext-103/wiki.{split}.tokens"]
        assert (found.out / "text" / split).read_bytes() == original
        assert found.summary["lines"][split] == count
        lines = [line.split() for line in original.decode().split("\n")[:-1]]
        words |= {word for line in lines if split == "train" for word in line}
        known = [[word if word in words else "<unk>" for word in line] for line in lines]
        assert [line.split() for line in found.binarized(split)] == known
    assert {w for w in found.dictionary().symbols[4:] if not w.startswith("madeupword")} == words


def test_another_wikitext103_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One word, in as many lines: the digests of the files hold, whatever archive they came in."""
    build("wikitext103", tmp_path / "mirror")
    files = wikitext103().archives["wikitext-103-v1.zip"]
    right = {split: files[f"wikitext-103/wiki.{split}.tokens"] for split in ("train", "valid", "test")}
    digests = {split: f"sha1:{hashlib.sha1(text).hexdigest()}" for split, text in right.items()}
    monkeypatch.setattr(corpora.wikitext103, "DIGESTS", digests)
    downloads = Downloads(tmp_path / "downloads", tmp_path / "mirror")
    prepare(find_corpus("wikitext103"), None, Job(tmp_path / "right", downloads, 1))
    assert (tmp_path / "right/text/valid").read_bytes() == right["valid"]
    other = hashlib.sha1(right["valid"].replace(b"=", b"-", 1)).hexdigest()
    monkeypatch.setitem(digests, "valid", f"sha1:{other}")
    with pytest.raises(UserError, match=rf"wiki.valid.tokens has the sha1 \w+ and should have {other}: it is another"):
        prepare(find_corpus("wikitext103"), None, Job(tmp_path / "wrong", downloads, 1))


def test_opus100(tmp_path: Path) -> None:
    """Two of three pairs have test data; all have one dictionary, the model's pieces; pieces make the text again."""
    found = prepare_stand_in("opus100", tmp_path)
    assert (found.out / "data-bin/lang_pairs.txt").read_text() == "en-de,de-en,en-fr,fr-en\n"
    model = sentencepiece.SentencePieceProcessor(model_file=str(found.out / "sentencepiece/spm_bpe110.model"))
    pieces = [model.id_to_piece(number) for number in range(110)]
    assert pieces[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    for pair, other in (("de-en", "de"), ("en-fr", "fr")):
        for language in ("en", other):
            assert found.dictionary(language).symbols == pieces
            for split, called, count in (("train", "train", 60), ("dev", "valid", 4), ("test", "test", 5)):
                original = random_lines(f"{pair}{split}", count, *pair.split("-"))[language]
                text = found.lines(f"text/{pair}/{called}.{language}")
                assert [model.decode(line.split()) for line in text] == original
                known = set(pieces)
                expected = [" ".join(w if w in known else "<unk>" for w in line.split()) for line in text]
                assert found.binarized(called, f"en-{other}", language) == expected
            assert (
                found.lines(f"raw/{pair}/test.{language}") == random_lines(f"{pair}test", 5, *pair.split("-"))[language]
            )
    assert found.summary["lines"] == {
        f"{pair}/{split}": count
        for pair in ("de-en", "en-fr")
        for split, count in (("train", 60), ("valid", 4), ("test", 5))
    }


def test_text_that_is_too_small_for_its_pieces_is_refused(tmp_path: Path) -> None:
    prepare_stand_in("opus100", tmp_path)
    (tmp_path / "mirror/stand_in.json").write_text('{"pieces": 5000}')
    with pytest.raises(UserError, match="cannot make 5,000 pieces of this text"):
        run("opus100", tmp_path / "again", tmp_path / "mirror")


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory):
    return prepare_stand_in("librispeech", tmp_path_factory.mktemp("librispeech"))


def test_librispeech_tables(speech) -> None:
    """Utterance i lasts 150 + 10 i ms: 1 + (150 + 10 i - 25) // 10 frames. Names lose their zeros, words their case."""
    assert speech.summary["lines"] == SPLITS
    for number, (split, count) in enumerate(SPLITS.items()):
        with (speech.out / f"data-bin/{split}.tsv").open() as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        assert list(rows[0]) == ["id", "audio", "n_frames", "tgt_text", "speaker"]
        assert [row["id"] for row in rows] == [f"{84 + number}-121123-{i}" for i in range(count)]
        assert [int(row["n_frames"]) for row in rows] == [13 + i for i in range(count)]
        assert {row["speaker"] for row in rows} == {str(84 + number)}
        words = [line.lower().strip(".").replace(",", "") for line in random_lines(split, count, "en")["en"]]
        assert [row["tgt_text"] for row in rows] == words == speech.lines(f"text/{split}")
    assert set(find_corpus("librispeech").variants["960h"].test_sets) == {
        "dev-clean",
        "dev-other",
        "test-clean",
        "test-other",
    }


def test_librispeech_features(speech) -> None:
    """fairseq finds in the zip, uncompressed, what Kaldi's filter bank makes of the samples as 16-bit integers."""
    with (speech.out / "data-bin/train-other-500.tsv").open() as file:
        row = list(csv.DictReader(file, delimiter="\t"))[4]
    found = get_features_or_waveform(str(speech.out / "fbank80" / row["audio"]), need_waveform=False)
    samples, rate = soundfile.read(io.BytesIO(flac(0.19, 400)), dtype="int16")
    assert (found.shape, found.dtype, rate) == ((17, 80), np.float32, 16000)
    np.testing.assert_allclose(found, fbank(samples[None].astype(np.float32), rate), rtol=1e-6)
    with zipfile.ZipFile(speech.out / "fbank80/train-other-500/fbank80.zip") as pack:
        assert {info.compress_type for info in pack.infolist()} == {zipfile.ZIP_STORED}


def test_librispeech_trains_by_its_settings(speech) -> None:
    config = yaml.safe_load((speech.out / "data-bin/config.yaml").read_text())
    policy = {"time_wrap_W": 0, "freq_mask_N": 2, "freq_mask_F": 27}
    assert config["specaugment"] == policy | {"time_mask_N": 2, "time_mask_T": 100, "time_mask_p": 1.0}
    assert config["transforms"] == {"_train": ["utterance_cmvn", "specaugment"], "*": ["utterance_cmvn"]}
    args = Namespace(
        data=str(speech.out / "data-bin"),
        config_yaml="config.yaml",
        seed=1,
        train_subset="train-clean-100",
        max_source_positions=6000,
        max_target_positions=1024,
    )
    task = SpeechToTextTask.setup_task(args)
    assert len(task.target_dictionary) == 45
    task.load_dataset("dev-other")
    data = task.dataset("dev-other")
    assert [data[i].source.shape for i in range(len(data))] == [(13, 80), (14, 80)]
    model = sentencepiece.SentencePieceProcessor(model_file=config["bpe_tokenizer"]["sentencepiece_model"])
    pieces = task.target_dictionary.string(data[1].target)
    assert model.decode(pieces.split()) == speech.lines("text/dev-other")[1]


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

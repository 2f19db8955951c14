"""The corpora that are made on the spot: as much as is stated, the same every time, nothing in two splits."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from prepared import Prepared

from fairseq_residuals.lab.data.corpora import (
    cldr,
    find_corpus,
    spoken_numbers,
)
from fairseq_residuals.lab.data.corpus import Job, prepare
from fairseq_residuals.lab.data.download import Downloads
from fairseq_residuals.wirings.core.errors import UserError


def tone(words: str, speaker: spoken_numbers.Speaker) -> bytes:
    """A voice that needs no program: 20 ms for each word, at 22,050 Hz."""
    buffer = io.BytesIO()
    time = np.arange(441 * len(words.split())) / 22050
    soundfile.write(buffer, 0.4 * np.sin(2 * np.pi * (100 + speaker.pitch) * time), 22050, format="WAV")
    return buffer.getvalue()


@pytest.fixture(scope="module", autouse=True)
def without_the_program():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spoken_numbers, "installed_voice", lambda: tone)
        yield


INSTALLED_VOICE = spoken_numbers.installed_voice
NAMES = ("cldr_en_de", "cldr_multilingual", "spoken_numbers")


@pytest.mark.parametrize("name", NAMES)
def test_the_same_is_made_every_time(name: str, tmp_path: Path) -> None:
    """The features of speech are compared by the tables that say where they are."""
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


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (99, "ninety nine"),
        (100, "one hundred"),
        (305, "three hundred five"),
        (4207, "four thousand two hundred seven"),
        (60_000, "sixty thousand"),
        (999_999, "nine hundred ninety nine thousand nine hundred ninety nine"),
    ],
)
def test_numbers_in_words(number, words):
    assert spoken_numbers.in_words(number) == words


def test_speech_has_librispeech_s_layout_and_no_two_splits_share_words_or_speakers(tmp_path: Path) -> None:
    counts = {"train-clean-100": 12, "train-clean-360": 48, "train-other-500": 60}
    counts |= dict.fromkeys(("dev-clean", "dev-other", "test-clean", "test-other"), 12)
    spoken_numbers.write(tmp_path, counts, tone)
    phrases, readers = [], []
    for split, count in counts.items():
        with tarfile.open(tmp_path / f"{split}.tar.gz") as archive:
            files = {member.name: archive.extractfile(member).read() for member in archive.getmembers()}
        told = {}
        for name, text in files.items():
            assert name.startswith(f"LibriSpeech/{split}/")
            if name.endswith(".trans.txt"):
                speaker, chapter = Path(name).parts[2:4]
                assert Path(name).name == f"{speaker}-{chapter}.trans.txt"
                readers.append(speaker)
                told |= dict(line.split(" ", 1) for line in text.decode().splitlines())
        sounds = {Path(name).stem: data for name, data in files.items() if name.endswith(".flac")}
        assert sounds.keys() == told.keys()
        assert len(told) == count
        for name, words in told.items():
            samples, rate = soundfile.read(io.BytesIO(sounds[name]))
            assert (rate, samples.ndim) == (16_000, 1)
            assert len(samples) == pytest.approx(320 * len(words.split()), abs=2)
            assert words == words.upper()
        phrases += told.values()
    assert len(set(phrases)) == len(phrases) == sum(counts.values())
    assert len(set(readers)) == len(readers) == spoken_numbers.SPEAKERS * len(counts)


def test_without_espeak_ng_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"^espeak-ng, .* is not installed: .*apt install espeak-ng$"):
        INSTALLED_VOICE()


def test_what_the_program_says_when_it_fails_is_told():
    failing = shutil.which("false")
    assert failing
    with pytest.raises(UserError, match="false failed with status 1: it made no sound"):
        spoken_numbers.espeak(failing, "one", spoken_numbers.Speaker(1, "en-us", 160, 50))
    with pytest.raises(UserError, match="cannot be read as sound"):
        spoken_numbers.flac(b"no sound")


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed (Debian: espeak-ng)")
def test_espeak_ng_reads_with_every_voice_that_is_used():
    voice = INSTALLED_VOICE()
    seen = {}
    for split in ("train-other-500", "dev-clean"):
        for speaker in spoken_numbers.speakers(split, 1):
            seen[speaker.voice] = len(soundfile.read(io.BytesIO(spoken_numbers.flac(voice("seven", speaker))))[0])
    assert min(seen.values()) > 0.2 * spoken_numbers.RATE

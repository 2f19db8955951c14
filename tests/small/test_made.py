"""What the small pipelines are made of: as much as was asked for, the same every time, nothing in two splits."""

import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fairseq_residuals.lab.recipes.synthetic_tasks import (
    TASKS,
    find_task,
    language_model,
    multilingual,
    speech,
    summarization,
    translation,
)
from fairseq_residuals.lab.recipes.synthetic_tasks.task import Sizes
from fairseq_residuals.wirings.core.errors import UserError

SIZES = Sizes(examples=120, updates=4, subwords=50)


def tone(words: str, speaker: speech.Speaker) -> bytes:
    """A voice that needs no program: 20 ms for each word, at 22,050 Hz."""
    buffer = io.BytesIO()
    time = np.arange(441 * len(words.split())) / 22050
    soundfile.write(buffer, 0.4 * np.sin(2 * np.pi * (100 + speaker.pitch) * time), 22050, format="WAV")
    return buffer.getvalue()


def make(name: str, mirror: Path) -> dict[str, object]:
    mirror.mkdir()
    if name == "speech":
        return dict(speech.make(mirror, SIZES, tone))
    return dict(find_task(name).make(mirror, SIZES))


def contents(folder: Path) -> dict[str, bytes]:
    """All files, those in archives too."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                files |= {name: archive.read(name) for name in archive.namelist()}
        elif tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                files |= {member.name: archive.extractfile(member).read() for member in archive.getmembers()}
        else:
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def lines(files: dict[str, bytes], name: str) -> list[str]:
    return files[name].decode().splitlines()


@pytest.fixture(scope="module", autouse=True)
def part_of_the_library():
    """A sixth of the standard library: parsing it all takes seconds."""
    modules = [module for i, module in enumerate(summarization.library()) if i % 6 == 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summarization, "library", lambda: iter(modules))
        yield


@pytest.mark.parametrize("name", TASKS)
def test_the_same_is_made_every_time(name, tmp_path):
    first, again = (make(name, tmp_path / folder) for folder in ("first", "again"))
    assert first == again
    made = contents(tmp_path / "first")
    assert made
    assert made == contents(tmp_path / "again")


def test_translation_has_the_pairs_asked_for_and_no_split_has_another_s(tmp_path):
    described = make("translation", tmp_path / "mirror")
    files = contents(tmp_path / "mirror")
    assert described == {"lines": {"train": 120, "valid": 12, "test": 12}, "merges": 50}
    for language in ("en", "de"):
        splits = [lines(files, f"{translation.NAME}/{split}.{language}") for split in ("train", "valid", "test")]
        assert [len(split) for split in splits] == [120, 12, 12]
        assert len(set().union(*splits)) == 144


def test_multilingual_text_says_the_same_on_both_sides_and_nothing_in_two_pairs_or_splits(tmp_path):
    make("multilingual", tmp_path / "mirror")
    files = contents(tmp_path / "mirror")
    said = [line for name in files if name.endswith(".en") for line in lines(files, name)]
    assert len(said) == len(set(said)) == 3 * (40 + 4 + 4)
    assert len(files) == 3 * 3 * 2
    by_english = {}
    stream = multilingual.sentences(seed=0)
    for _ in range(len(said)):
        sentence = next(stream)
        by_english[sentence["en"]] = sentence
    for name in files:
        pair, language = name.rpartition("-")[0].rpartition(".")[2], name.rpartition(".")[2]
        english = name.removesuffix(language) + "en"
        assert "en" in pair.split("-")
        assert [by_english[line][language] for line in lines(files, english)] == lines(files, name)


LIBRARY = {
    "a.py": '''
def f():
    """Give the answer to it all.

    It takes 42 years, and then it is there.
    """

def g():
    """The first line goes
    on in the second one, so it is no sentence.
    """

class C:
    """Only one line, nothing to summarize."""

    async def h(self):
        """Ends with a stop, no blank line.
        One two three four five six.
        """
''',
    "b.py": 'def f():\n    """Give the answer to it all.\n\n    Said before, by another body of text.\n    """\n',
}


def test_a_docstring_is_its_text_and_its_first_line_if_that_is_a_sentence():
    assert list(summarization.pairs_of(LIBRARY["a.py"])) == [
        ("it takes ## years , and then it is there .", "give the answer to it all ."),
        ("one two three four five six .", "ends with a stop , no blank line ."),
    ]


def test_no_title_and_no_body_of_the_library_comes_twice():
    splits = summarization.collect(iter(LIBRARY.items()))
    titles = [pair.title for pairs in splits.values() for pair in pairs]
    assert sorted(titles) == ["ends with a stop , no blank line .", "give the answer to it all ."]


def test_the_library_is_split_by_file(tmp_path):
    described = make("summarization", tmp_path / "mirror")
    assert described["lines"] == {"train": 120, "valid": 12, "test": 12}
    files = contents(tmp_path / "mirror")
    for side in ("src", "tgt"):
        splits = [lines(files, f"org_data/{split}.{side}.txt") for split in ("train", "dev", "test")]
        assert len({line for split in splits for line in split}) == 144
    owners = {}
    for name, source in summarization.library():
        for split, pairs in summarization.collect(iter([(name, source)])).items():
            if pairs:
                owners.setdefault(name, set()).add(split)
    assert owners
    assert all(len(splits) == 1 for splits in owners.values())
    assert set().union(*owners.values()) == {"train", "dev", "test"}


def test_a_topic_is_in_one_split_and_a_paragraph_comes_once():
    articles = {f"topic{i}": f"Word{i} is new, here.\n\nThis is said in all." for i in range(16)}
    splits = language_model.collect(articles)
    assert [len(splits[split]) for split in ("train", "valid", "test")] == [12 + 1, 2, 2]
    assert splits["valid"] == [["Word1", "is", "new", ",", "here", "."], ["Word3", "is", "new", ",", "here", "."]]


def test_rare_words_are_unknown_whatever_the_held_out_text_says():
    splits = {"train": [["a", "a", "b"], ["c"]], "valid": [["c", "c", "a"]], "test": []}
    assert language_model.with_unknown(splits, least=2) == {
        "train": ["a a <unk>", "<unk>"],
        "valid": ["<unk> <unk> a"],
        "test": [],
    }


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
    assert speech.in_words(number) == words


def test_speech_has_librispeech_s_layout_and_no_two_splits_share_words_or_speakers(tmp_path):
    described = make("speech", tmp_path / "mirror")
    counts = {"train-clean-100": 12, "train-clean-360": 48, "train-other-500": 60}
    counts |= dict.fromkeys(("dev-clean", "dev-other", "test-clean", "test-other"), 12)
    assert described == {"lines": counts, "pieces": 50, "sha256": ""}
    phrases, readers = [], []
    for split, count in counts.items():
        with tarfile.open(tmp_path / "mirror" / f"{split}.tar.gz") as archive:
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
    assert len(set(readers)) == len(readers) == speech.SPEAKERS * len(counts)


def test_without_espeak_ng_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"^espeak-ng, .* is not installed: .*apt install espeak-ng$"):
        speech.installed_voice()


def test_what_the_program_says_when_it_fails_is_told():
    failing = shutil.which("false")
    assert failing
    with pytest.raises(UserError, match="false failed with status 1: it made no sound"):
        speech.espeak(failing, "one", speech.Speaker(1, "en-us", 160, 50))
    with pytest.raises(UserError, match="cannot be read as sound"):
        speech.flac(b"no sound")


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed (Debian: espeak-ng)")
def test_espeak_ng_reads_with_every_voice_that_is_used():
    voice = speech.installed_voice()
    seen = {}
    for split in ("train-other-500", "dev-clean"):
        for speaker in speech.speakers(split, 1):
            seen[speaker.voice] = len(soundfile.read(io.BytesIO(speech.flac(voice("seven", speaker))))[0])
    assert min(seen.values()) > 0.2 * speech.RATE

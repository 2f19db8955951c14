"""Descriptions of Debian's packages, from a synthetic mirror to data for fairseq."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from debian_mirror import BOILERPLATE, Package, packages, write_mirror
from prepared import Prepared, run

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.data.corpora import debian as corpus
from fairseq_residuals.lab.data.corpora import debian_release as debian
from fairseq_residuals.lab.data.corpora import find_corpus
from fairseq_residuals.lab.data.corpus import Job, prepare
from fairseq_residuals.lab.data.download import Downloads
from fairseq_residuals.wirings.core.errors import UserError

SETS = ("train", "valid", "test")
EMPTY = Package("empty", "empty", {"en": ["transitional dummy package", " Nothing in it."]})
UNTRANSLATED = Package("copy", "copy", {key: ["one two three four", " five six seven."] for key in ("en", "it")})


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("debian") / "mirror"
    write_mirror(folder, [*packages(90, "it"), EMPTY, UNTRANSLATED], held_out=120)
    return folder


@pytest.fixture(scope="module")
def italian(mirror: Path) -> Prepared:
    return run("debian", mirror.parent / "it", mirror, "en_it")


def test_translation(italian: Prepared) -> None:
    """Every pair is that of a package; what all say is not held out; what was not translated is nowhere."""
    expected = {}
    for package in packages(90, "it"):
        english, other = package.descriptions["en"], package.descriptions["it"]
        expected[english[0]] = other[0]
        if package.name.endswith("-dev"):
            expected[BOILERPLATE["en"]] = BOILERPLATE["it"]
        else:
            expected[f"{english[1]} {english[2].strip()}".strip()] = f"{other[1]} {other[2].strip()}".strip()
            expected |= {
                one.strip(" *.,"): another.strip(" *.,") for one, another in zip(english[4:], other[4:], strict=True)
            }
    said = {name: italian.words(f"text/{name}.en") for name in SETS}
    for name in ("valid", "test"):
        raw = [italian.lines(f"raw/{name}.{language}") for language in ("en", "it")]
        assert all(expected[one] == another for one, another in zip(*raw, strict=True))
        assert 120 <= len(raw[0]) <= 125
        assert BOILERPLATE["en"] not in raw[0]
    everything = [line for lines in said.values() for line in lines]
    assert len(everything) == len(set(everything))
    boilerplate = BOILERPLATE["en"].replace(".", " .")
    assert boilerplate in said["train"]
    assert not any("dummy" in line or "two three" in line for line in everything)
    assert italian.summary["lines"] == {name: len(lines) for name, lines in said.items()}
    assert len(everything) == len(expected)
    assert italian.binarized("test", "en-it", "it")
    assert italian.summary["parameters"]["work/release"]["release"].startswith("Debian 12.99 (bookworm) of Sat, 01 Jan")


def test_the_same_bytes_again(italian: Prepared, mirror: Path, tmp_path: Path) -> None:
    assert run("debian", tmp_path / "again", mirror, "en_it", workers=2).files() == italian.files()


def test_headlines(mirror: Path, tmp_path: Path) -> None:
    """Of packages with 15 words or more; names go with each test sentence."""
    found = run("debian", tmp_path, mirror_with(tmp_path / "mirror", packages(90), 40), "headlines")
    long = {}
    for package in packages(90):
        synopsis, *body = package.descriptions["en"]
        text = " ".join(line.strip(" *") for line in body if line != " .")
        if len(text.split()) >= 15:
            long[synopsis] = package.name
    titles = {name: found.words(f"text/{name}.tgt") for name in SETS}
    assert sum(map(len, titles.values())) == len(long)
    names = found.lines("names/test")
    assert [long[title] for title in found.lines("raw/test.tgt")] == names


def mirror_with(folder: Path, listed: list[Package], held_out: int) -> Path:
    write_mirror(folder, listed, held_out=held_out)
    return folder


def test_language_model(tmp_path: Path) -> None:
    """A paragraph a line; a blank line after each source package."""
    listed = packages(60)
    found = run("debian", tmp_path / "out", mirror_with(tmp_path / "mirror", listed, 80), "lm")
    synopses = {package.descriptions["en"][0].replace(",", " ,") for package in listed}
    documents = {
        name: [document.strip("\n").split("\n") for document in "\n".join(found.words(f"text/{name}")).split("\n\n")]
        for name in SETS
    }
    assert [document[0] in synopses for parts in documents.values() for document in parts] == [True] * 60
    assert all(len(document) == 4 for parts in documents.values() for document in parts)
    assert found.binarized("test")


def test_many_languages(tmp_path: Path) -> None:
    """From English only, one dictionary, and a package in the same data set in all languages."""
    listed = [package for package in packages(120, *corpus.LANGUAGES) if not package.name.endswith("-dev")]
    found = run("debian", tmp_path / "out", mirror_with(tmp_path / "mirror", listed, 800), "multilingual")
    directions = (found.out / "data-bin/lang_pairs.txt").read_text().strip().split(",")
    assert directions == sorted(f"en-{language}" for language in corpus.LANGUAGES)
    english = {pair: set(found.lines(f"raw/{pair}/test.en")) for pair in directions}
    assert len(set(map(frozenset, english.values()))) == 1
    assert found.binarized("test", "en-pt_BR", "pt_BR")


@pytest.fixture
def address(mirror: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(mirror)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_another_release_from_an_address_is_taken_and_recorded(
    address: str, italian: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """As the mirror has it; one that is too small for the corpus's own sizes is refused."""
    monkeypatch.setattr(debian, "check_signature", lambda path: (f"{path.name} was looked at", None))
    arguments = ["prepare", "debian", str(tmp_path), "--mirror", address, "--workers", "1", "--release", "bookworm"]
    assert main(arguments) != 0
    assert "Debian 12.99 has too few descriptions: valid is empty" in capsys.readouterr().err
    assert not (tmp_path / "prepared.json").exists()
    monkeypatch.setattr(corpus, "HELD_OUT", 120)
    assert main(arguments) == 0
    assert "InRelease was looked at" in capsys.readouterr().err
    found = Prepared(tmp_path, tmp_path)
    assert found.summary["parameters"]["work/release"]["release"].startswith("Debian 12.99 (bookworm) of Sat, 01 Jan")
    assert found.lines("raw/test.it") == italian.lines("raw/test.it")


def test_the_pinned_release_refuses_another_one(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(debian, "check_signature", lambda path: ("", None))
    assert main(["prepare", "debian", str(tmp_path), "--mirror", address, "--workers", "1"]) != 0
    told = capsys.readouterr().err
    assert "the mirror has Debian 12.99 of Sat, 01 Jan 2028 00:00:00 UTC" in told and "--release bookworm" in told
    # what was refused is not kept: another mirror may be given
    assert not (tmp_path / "downloads/dists/bookworm/InRelease").exists()


def test_where_no_mirror_is_known_one_sentence_says_what_to_give(tmp_path: Path) -> None:
    job = Job(tmp_path, Downloads(tmp_path / "downloads"), 1)
    with pytest.raises(UserError, match=r"InRelease cannot be downloaded: .* name one by --mirror"):
        prepare(find_corpus("debian"), "en_it", job)


def test_other_corpora_have_no_releases(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["prepare", "wikitext103", str(tmp_path), "--release", "bookworm"]) != 0
    assert "wikitext103 does not come in releases" in capsys.readouterr().err


def test_a_damaged_file_of_a_mirror_is_refused(tmp_path: Path) -> None:
    mirror_with(tmp_path / "mirror", packages(5, "it"), 5)
    damaged = tmp_path / "mirror/dists/bookworm/main/i18n/Translation-it.bz2"
    damaged.write_bytes(damaged.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"Translation-it\.bz2 is truncated or damaged"):
        run("debian", tmp_path / "out", tmp_path / "mirror", "en_it")
    assert not (tmp_path / "out/raw").exists()

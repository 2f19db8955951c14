"""Descriptions of Debian's packages, from a synthetic mirror to data for fairseq."""

from __future__ import annotations

import bz2
import hashlib
import json
import lzma
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import test_download
from prepared import Prepared, run
from published_layouts import STAND_IN, random_lines

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.data.corpora import find_corpus
from fairseq_residuals.lab.data.corpora.debian import FILES, PACKAGES, apt_mirrors
from fairseq_residuals.lab.data.corpus import Job, prepare
from fairseq_residuals.lab.data.download import Downloads
from fairseq_residuals.wirings.core.errors import UserError

BOILERPLATE = {
    "en": "This package contains the development files.",
    "it": "Questo pacchetto contiene i file di sviluppo.",
}


@dataclass
class Package:
    """A binary package."""

    name: str
    source: str
    descriptions: dict[str, list[str]] = field(default_factory=dict)
    """By language, the lines as they stand in the file, synopsis first."""

    @property
    def md5(self) -> str:
        """The key that joins languages."""
        return hashlib.md5("\n".join(self.descriptions["en"]).encode()).hexdigest()

    def paragraph(self, language: str) -> str:
        """Return the package's part of a file of descriptions."""
        lines = [f"Package: {self.name}", f"Description-md5: {self.md5}"]
        return "\n".join([*lines, f"Description-{language}: " + "\n".join(self.descriptions[language]), ""])


def random_package(number: int, *languages: str) -> Package:
    """Return a package of a source of its own: a synopsis, a paragraph over two lines, two items of a list."""
    name = f"lib{number:03}x"
    texts = random_lines(name, 5, "en", *languages)
    described = {
        language: [said[0].rstrip("."), f" {said[1]}", f" {said[2]}", " .", f"  * {said[3]}", f"  * {said[4]}"]
        for language, said in texts.items()
    }
    return Package(name, name, described)


def packages(count: int, *languages: str) -> list[Package]:
    """Return packages of ``count`` sources; each has one of development files besides, which all say the same."""
    listed = []
    for number in range(count):
        package = random_package(number, *languages)
        listed += [package]
        if "it" in languages:
            described = {
                language: [f"{package.descriptions[language][0]} headers", f" {BOILERPLATE[language]}"]
                for language in ("en", "it")
            }
            listed.append(Package(f"{package.name}-dev", f"{package.name} (1.0)", described))
    return listed


def write_mirror(folder: Path, listed: list[Package], held_out: int = 10) -> Path:
    """Write the mirror, whose files have other digests than the pinned ones; return its folder."""
    names = "".join(f"Package: {p.name}\nSource: {p.source}\nArchitecture: all\n\n" for p in listed)
    files = {PACKAGES: names}
    for language in (name for name in FILES if name != PACKAGES):
        files[language] = "\n".join(p.paragraph(language) for p in listed if language in p.descriptions)
    for name, text in files.items():
        path = folder / FILES[name].name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((lzma if path.suffix == ".xz" else bz2).compress(text.encode()))
    described = {"held_out": held_out, "merges": 60}
    (folder / STAND_IN).write_text(json.dumps(described))
    return folder


served = test_download.served
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


def test_the_same_bytes_again(italian: Prepared, mirror: Path, tmp_path: Path) -> None:
    assert run("debian", tmp_path / "again", mirror, "en_it", workers=2).files() == italian.files()


def test_headlines(mirror: Path, tmp_path: Path) -> None:
    """Of packages with 15 words or more."""
    found = run("debian", tmp_path, write_mirror(tmp_path / "mirror", packages(90), 40), "headlines")
    long = set()
    for package in packages(90):
        synopsis, *body = package.descriptions["en"]
        text = " ".join(line.strip(" *") for line in body if line != " .")
        if len(text.split()) >= 15:
            long.add(synopsis)
    titles = {name: found.words(f"text/{name}.tgt") for name in SETS}
    assert sum(map(len, titles.values())) == len(long)
    assert set(found.lines("raw/test.tgt")) <= long


def test_language_model(tmp_path: Path) -> None:
    """A paragraph a line; a blank line after each source package."""
    listed = packages(60)
    found = run("debian", tmp_path / "out", write_mirror(tmp_path / "mirror", listed, 80), "lm")
    synopses = {package.descriptions["en"][0].replace(",", " ,") for package in listed}
    documents = {
        name: [document.strip("\n").split("\n") for document in "\n".join(found.words(f"text/{name}")).split("\n\n")]
        for name in SETS
    }
    assert [document[0] in synopses for parts in documents.values() for document in parts] == [True] * 60
    assert all(len(document) == 4 for parts in documents.values() for document in parts)
    assert found.binarized("test")


def test_files_of_another_point_release_are_refused(
    mirror: Path, served: test_download.Served, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    served.files = {f"/{path.relative_to(mirror)}": path.read_bytes() for path in mirror.rglob("*") if path.is_file()}
    assert main(["prepare", "debian", str(tmp_path), "--mirror", served.address, "--workers", "1"]) != 0
    told = capsys.readouterr().err
    assert "until a point release after 12.15 replaces it" in told and "and should have 9e0b5aabb2465b3d" in told
    assert not list((tmp_path / "downloads").rglob("*.xz*"))  # another mirror may be given


def test_mirrors_are_those_that_apt_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = ["http://a/debian/ stable", "http://b/debian-security/ stable-security", "cdrom:[x]/ stable"]
    named += ["http://a/debian/ stable-updates", "https://c/debian/ stable"]
    program = tmp_path / "bin/apt-get"
    program.parent.mkdir()
    program.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in named), ""]))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert apt_mirrors() == ("http://a/debian", "https://c/debian")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert apt_mirrors() == ()


def test_where_no_mirror_is_known_one_sentence_says_what_to_give(tmp_path: Path) -> None:
    job = Job(tmp_path, Downloads(tmp_path / "downloads"), 1)
    with pytest.raises(UserError, match=r"Packages\.xz cannot be downloaded: .* name one by --mirror"):
        prepare(find_corpus("debian"), "en_it", job)


def test_a_damaged_file_of_a_mirror_is_refused(tmp_path: Path) -> None:
    write_mirror(tmp_path / "mirror", packages(5, "it"), 5)
    damaged = tmp_path / "mirror/dists/bookworm/main/i18n/Translation-it.bz2"
    damaged.write_bytes(damaged.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"Translation-it\.bz2 is truncated or damaged"):
        run("debian", tmp_path / "out", tmp_path / "mirror", "en_it")
    assert not (tmp_path / "out/raw").exists()

"""What goes wrong on the way leaves nothing that looks right, and a second run ends as an undisturbed one."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from prepared import Prepared, prepare_stand_in, run
from published_layouts import StandIn, pack
from stand_ins import build

from fairseq_residuals.lab.data import steps
from fairseq_residuals.lab.data.corpora import CORPORA, find_corpus
from fairseq_residuals.lab.data.corpus import Job, prepare
from fairseq_residuals.lab.data.download import SUMS, Downloads
from fairseq_residuals.lab.utils.checkout import ROOT
from fairseq_residuals.plugin import folders
from fairseq_residuals.wirings.core.errors import UserError

CORPUS = "wmt17_en_de"
ARCHIVE = "training-parallel-europarl-v7.tgz"
GERMAN = "training/europarl-v7.de-en.de"
TEST = "wmt14-test-full.tgz"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A preparation that nothing disturbed."""
    folder = tmp_path_factory.mktemp("clean")
    build(CORPUS, folder / "mirror")
    return run(CORPUS, folder / "out", folder / "mirror")


def misaligned(stand_in: StandIn, mirror: Path) -> None:
    files = stand_in.archives[ARCHIVE]
    pack(files | {GERMAN: files[GERMAN].partition(b"\n")[2]}, mirror / ARCHIVE)


def incomplete(stand_in: StandIn, mirror: Path) -> None:
    pack({name: text for name, text in stand_in.archives[ARCHIVE].items() if name != GERMAN}, mirror / ARCHIVE)


def without_sentence_8(sgm: bytes) -> bytes:
    return re.sub(rb'<seg id="8">.*?</seg>', b"", sgm, flags=re.DOTALL)


def short_test_set(stand_in: StandIn, mirror: Path) -> None:
    files = {name: without_sentence_8(text) for name, text in stand_in.archives[TEST].items()}
    pack(files, mirror / TEST)


def misaligned_test_set(stand_in: StandIn, mirror: Path) -> None:
    described = stand_in.described | {"lines": {}}
    (mirror / "stand_in.json").write_text(json.dumps(described))
    files = stand_in.archives[TEST]
    name = next(name for name in files if name.endswith("ref.de.sgm"))
    pack(files | {name: without_sentence_8(files[name])}, mirror / TEST)


DAMAGES = {
    misaligned: r"europarl-v7\.de-en\.\{lang\} has 100 lines in en and 99 in de: the two sides do not belong together",
    incomplete: r"lacks training/europarl-v7\.de-en\.de",
    short_test_set: "newstest2014 has 7 lines and should have 8",
    misaligned_test_set: "differ in their numbers of lines",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_bad_archive_is_refused_and_forgotten(clean: Prepared, tmp_path: Path, damage) -> None:
    stand_in = build(CORPUS, tmp_path / "mirror")
    damage(stand_in, tmp_path / "mirror")
    with pytest.raises(UserError, match=DAMAGES[damage]):
        run(CORPUS, tmp_path / "out", tmp_path / "mirror")
    out = tmp_path / "out"
    assert not any((out / name).exists() for name in ("text", "data-bin", "prepared.json", "work/tokenized"))
    bad = TEST if "test" in damage.__name__ else ARCHIVE
    assert not (out / "work/unpacked" / bad).exists()
    assert not list(out.rglob("*.partial"))
    sums = out / "downloads" / SUMS
    assert not sums.exists() or bad not in sums.read_text()
    stand_in.write(tmp_path / "mirror")  # the right one
    assert run(CORPUS, out, tmp_path / "mirror").files() == clean.files()


def test_an_archive_that_changed_since_it_was_used_is_refused(clean: Prepared, tmp_path: Path) -> None:
    stand_in = build(CORPUS, tmp_path / "mirror")
    found = run(CORPUS, tmp_path / "out", tmp_path / "mirror")
    misaligned(stand_in, tmp_path / "mirror")
    assert run(CORPUS, tmp_path / "out", tmp_path / "mirror").files() == clean.files()  # it is not needed any more
    for step in ("text", "codes"):
        shutil.rmtree(found.out / step)
    for _ in range(2):
        with pytest.raises(UserError, match=rf"{ARCHIVE} has the sha256 \w+ and had \w+ before"):
            run(CORPUS, tmp_path / "out", tmp_path / "mirror")


def test_whenever_it_is_interrupted_a_second_run_ends_with_the_same_bytes(
    clean: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in each of its steps in turn, just before the step's folder would get its name."""
    flush, begun = folders.flush_to_disk, []

    def interrupted(folder: Path) -> None:
        if folder.name not in begun:
            begun.append(folder.name)
            raise KeyboardInterrupt
        flush(folder)

    monkeypatch.setattr(folders, "flush_to_disk", interrupted)
    while not (tmp_path / "out/prepared.json").exists():
        try:
            found = run(CORPUS, tmp_path / "out", clean.mirror)
        except KeyboardInterrupt:
            assert len(begun) < 20
            assert not (tmp_path / "out/prepared.json").exists()
    assert begun[4:] == [
        f"{name}.partial" for name in ("raw", "tokenized", "cleaned", "codes", "encoded", "text", "data-bin")
    ]
    assert found.files() == clean.files()


@pytest.mark.parametrize("name", ["text/corpus.en", "raw", "work/thesis/ch1.tex"])
def test_what_is_the_users_is_kept(clean: Prepared, tmp_path: Path, name: str) -> None:
    """A folder that a step would make anew, or that is work; also beside what was made."""
    mine = tmp_path / "out" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    shutil.copytree(clean.out / "codes", tmp_path / "out/codes")
    with pytest.raises(UserError, match=rf"prepare did not make {mine}, and would remove .*name another folder"):
        run(CORPUS, tmp_path / "out", clean.mirror)
    left = {path for path in (tmp_path / "out").rglob("[!.]*") if path.is_file()}
    assert left == {mine, tmp_path / "out/codes/codes"}


def test_a_removal_that_was_killed_is_gone_on_with(clean: Prepared, tmp_path: Path, monkeypatch) -> None:
    def killed(folder: Path, **settings: object) -> None:
        if folder.exists():
            (folder / "cleaned" / steps.STAMP).unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(steps.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            run(CORPUS, tmp_path / "out", clean.mirror)
    assert not (tmp_path / "out/prepared.json").exists()
    assert run(CORPUS, tmp_path / "out", clean.mirror).files() == clean.files()


def test_what_is_done_is_not_done_again(clean: Prepared, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in clean.out.rglob("*") if path.name != ".lock"}
    run(CORPUS, clean.out, clean.mirror)
    assert "prepare:" not in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in clean.out.rglob("*") if path.name != ".lock"} == before


@pytest.mark.parametrize("edit", ["removed", "changed"])
def test_what_was_edited_is_not_ready(edit: str, clean: Prepared, tmp_path: Path) -> None:
    shutil.copytree(clean.out, tmp_path / "out")
    file = next(iter(sorted((tmp_path / "out/data-bin").glob("*.bin"))))
    if edit == "removed":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] + b"\1")
    with pytest.raises(UserError, match=f"{file} was changed or removed since it was made: remove {file.parent}"):
        run(CORPUS, tmp_path / "out", clean.mirror)
    shutil.rmtree(file.parent)
    assert run(CORPUS, tmp_path / "out", clean.mirror).files() == clean.files()


def test_the_number_of_processes_does_not_matter(clean: Prepared, tmp_path: Path) -> None:
    assert run(CORPUS, tmp_path / "out", clean.mirror, workers=3).files() == clean.files()


def test_binary_data_are_made_anew_from_the_text_alone(clean: Prepared, tmp_path: Path) -> None:
    found = run(CORPUS, tmp_path / "out", clean.mirror)
    shutil.rmtree(found.out / "data-bin")
    (tmp_path / "empty").mkdir()
    described = (clean.mirror / "stand_in.json").read_text()
    (tmp_path / "empty/stand_in.json").write_text(described)
    assert run(CORPUS, found.out, tmp_path / "empty").files() == clean.files()


def test_the_published_sizes_hold_where_nothing_stands_in(tmp_path: Path) -> None:
    """Without stand_in.json the same archives are not Europarl, whose digest is known."""
    stand_in = build("iwslt14_de_en", tmp_path / "mirror")
    assert stand_in.described["lines"] == {"train": 52, "test": 15}
    job = Job(tmp_path / "out", Downloads(tmp_path / "downloads", tmp_path / "mirror"), 1)
    with pytest.raises(UserError, match="test has 15 lines and should have 6,750"):
        prepare(find_corpus("iwslt14_de_en"), None, job)
    build(CORPUS, tmp_path / "other")
    job = Job(tmp_path / "out2", Downloads(tmp_path / "downloads", tmp_path / "other"), 1)
    with pytest.raises(UserError, match=r"europarl-v7.tgz has the sha256 \w+ and should have 0224\w+: replace it$"):
        prepare(find_corpus(CORPUS), None, job)


def test_folders_with_a_comma_and_unknown_variants_are_refused(clean: Prepared, tmp_path: Path) -> None:
    for name in ("a,b", "a:b"):
        with pytest.raises(UserError, match="takes commas and colons for separators"):
            run(CORPUS, tmp_path / name, clean.mirror)
    with pytest.raises(UserError, match="wmt17_en_de has no variant icml: choose one of wmt17"):
        run(CORPUS, tmp_path / "out", clean.mirror, "icml")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_another_variant_is_left_as_it_is(tmp_path: Path) -> None:
    found = prepare_stand_in("iwslt14_de_en", tmp_path)
    before = found.files()
    with pytest.raises(UserError, match="variant joined: name another folder for iwslt14_de_en, variant separate"):
        run("iwslt14_de_en", found.out, found.mirror, "separate")
    assert found.files() == before


@pytest.mark.parametrize(("corpus", "library"), [("librispeech", "soundfile"), ("cldr_en_de", "babel")])
def test_a_library_that_is_missing_is_named(corpus: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an extra of pyproject.toml that has it."""
    for name in (f"corpora.{CORPORA[corpus]}", "synthetic"):
        monkeypatch.delitem(sys.modules, f"fairseq_residuals.lab.data.{name}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=f"{corpus} needs the library {library}, .* pip install") as refused:
        find_corpus(corpus)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.search(r"\[(.*)\]", str(refused.value))[1].split(",")
    assert library in " ".join(package.lower() for extra in named for package in extras[extra])

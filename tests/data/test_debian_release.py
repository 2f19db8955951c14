"""Releases of Debian on mirrors: where they are, what is signed, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from debian_mirror import packages, write_mirror, write_release

from fairseq_residuals.lab.data.corpora import debian_release as debian
from fairseq_residuals.lab.data.corpora.debian_release import (
    apt_mirrors,
    check_signature,
    difference,
    in_release,
    read_release,
)
from fairseq_residuals.wirings.core.errors import UserError


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    write_mirror(tmp_path / "mirror", packages(3, "it"))
    return tmp_path / "mirror/dists/bookworm/InRelease"


def test_a_release_vouches_for_its_files(listed: Path) -> None:
    release = read_release(listed, "bookworm")
    assert str(release) == "Debian 12.99 (bookworm) of Sat, 01 Jan 2028 00:00:00 UTC"
    source = release.source("i18n/Translation-it")
    assert source.name == "dists/bookworm/main/i18n/Translation-it.bz2"
    assert source.size == (listed.parent / "main/i18n/Translation-it.bz2").stat().st_size
    with pytest.raises(UserError, match=r"Debian 12.99 \(bookworm\) has no file main/i18n/Translation-xx"):
        release.source("i18n/Translation-xx")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("Origin: Debian", "Origin: Ubuntu", "is a list of Ubuntu bookworm, not of Debian bookworm"),
        ("Codename: bookworm", "Codename: trixie", "is a list of Debian trixie, not of Debian bookworm"),
        ("-----BEGIN PGP SIGNED MESSAGE-----\n", "", "is no signed list of files"),
        ("-----BEGIN PGP SIGNED", "Origin: Evil\n-----BEGIN PGP SIGNED", "is no signed list of files"),
        ("-----END PGP SIGNATURE-----\n", "-----END PGP SIGNATURE-----\n 00 1 main/x\n", "is no signed list of files"),
    ],
)
def test_another_list_or_one_with_unsigned_parts_is_refused(
    listed: Path, before: str, after: str, message: str
) -> None:
    text = listed.read_text()
    assert before in text
    listed.write_text(text.replace(before, after))
    with pytest.raises(UserError, match=message):
        read_release(listed, "bookworm")


def test_only_what_gpgv_put_out_is_read(listed: Path) -> None:
    text = listed.read_text().partition("\n\n")[2].replace("Version: 12.99", "Version: 12.1")
    assert read_release(listed, "bookworm", text).version == "12.1"


def test_another_point_release_is_refused_where_it_differs_in_what_is_needed(listed: Path, tmp_path: Path) -> None:
    pinned = read_release(listed, "bookworm")
    files = write_mirror(tmp_path / "other", packages(3, "it"))
    files["i18n/Translation-de.bz2"] = b"changed"
    other = tmp_path / "InRelease"
    write_release(other, files, version="12.100")
    offered = read_release(other, "bookworm")
    assert not difference(pinned, offered, ["i18n/Translation-it", "binary-amd64/Packages"])
    wrong = difference(pinned, offered, ["i18n/Translation-de", "i18n/Translation-it"])
    assert "Debian 12.100 " in wrong and "i18n/Translation-de.bz2" in wrong and "--release bookworm" in wrong
    assert "Translation-it" not in wrong


@pytest.mark.parametrize("name", ("../evil", "bookworm/x", "", "Bookworm"))
def test_a_release_is_named_by_a_word(name: str) -> None:
    with pytest.raises(UserError, match="is not the name of a release of Debian"):
        in_release(name)


@pytest.mark.parametrize(
    ("status", "accepted"),
    [
        ("GOODSIG 1 archive", True),
        ("GOODSIG 1 archive\n[GNUPG:] ERRSIG 2\n[GNUPG:] NO_PUBKEY 2", True),
        ("ERRSIG 2\n[GNUPG:] NO_PUBKEY 2", False),
        ("GOODSIG 1 archive\n[GNUPG:] BADSIG 2 other", False),
        ("NODATA 1", False),
    ],
)
def test_a_signature_has_to_be_that_of_the_archive(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, accepted: bool
) -> None:
    """A stand-in for gpgv says what gpgv would; one good signature is enough, a bad one is too much."""
    lines = "\n".join(f"echo '{line}' >&2" for line in f"[GNUPG:] {status}".split("\n"))
    given = '[ "$3" = --keyring ] && [ -f "$4" ] && [ "$5" = --output ] && [ "$6" = - ] && [ -f "$7" ] || exit 3'
    program(tmp_path / "bin", "gpgv", f"{given}\n{lines}\necho signed\nexit 2")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / debian.KEYRINGS[0]).touch()
    monkeypatch.setattr(debian, "KEYRING_FOLDER", tmp_path)
    if accepted:
        assert check_signature(listed) == ("the signature of InRelease is that of Debian's archive", "signed\n")
    else:
        with pytest.raises(UserError, match="is not signed by a key of"):
            check_signature(listed)


def test_what_cannot_be_checked_is_said(listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "KEYRING_FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / debian.KEYRINGS[0]).touch()
    assert "was not checked, because gpgv is not installed" in check_signature(listed)[0]
    (tmp_path / debian.KEYRINGS[0]).unlink()
    assert "debian-archive-keyring" in check_signature(listed)[0]


def test_the_real_gpgv_refuses_an_envelope_that_nobody_signed(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = check_signature_or_refusal(listed)
    if "was not checked" in told:
        pytest.skip(told)
    assert "is not signed by a key of" in told


def check_signature_or_refusal(path: Path) -> str:
    try:
        return check_signature(path)[0]
    except UserError as error:
        return str(error)


def test_mirrors_are_those_that_apt_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = ["http://a/debian/ stable", "http://b/debian-security/ stable-security", "cdrom:[x]/ stable"]
    named += ["http://a/debian/ stable-updates", "https://c/debian/ stable"]
    program(tmp_path / "bin", "apt-get", "\n".join(f"echo '{line}'" for line in named))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert apt_mirrors() == ("http://a/debian", "https://c/debian")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert apt_mirrors() == ()

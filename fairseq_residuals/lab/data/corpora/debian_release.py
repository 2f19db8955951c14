"""Mirrors of Debian, and what a release on them vouches for.

A release is a folder ``dists/<codename>`` of a mirror. Its file ``InRelease`` is signed by Debian and lists size and
SHA-256 of all others: https://wiki.debian.org/DebianRepository/Format. A point release replaces it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.wirings.core.errors import UserError

KEYRINGS = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
KEYRING_FOLDER = Path("/usr/share/keyrings")
TERMS = (
    "every mirror of Debian has it, for the life of the release; if this machine's apt names none (apt-get "
    "indextargets), name one by --mirror: an address such as http://HOST/debian, or a folder with dists/ in it"
)
COMPRESSED = (".xz", ".bz2", ".gz")
LIST_SIZE = 151_075
"""Bytes of the list of Debian 12.15; those of other releases have about as many."""
_CLEARSIGNED = re.compile(
    r"-----BEGIN PGP SIGNED MESSAGE-----\n(?:Hash: [^\n]*\n)*\n(?P<text>.*)\n"
    r"-----BEGIN PGP SIGNATURE-----\n[^-]*-----END PGP SIGNATURE-----\n*",
    re.DOTALL,
)
_LISTED = re.compile(r" (?P<sha256>[0-9a-f]{64}) +(?P<size>\d+) (?P<path>\S+)")
_CODENAME = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class Release:
    """A point release, and the SHA-256 of those of its files that a corpus may need."""

    codename: str
    version: str
    date: str
    files: Mapping[str, str]
    """Digests by path below ``main/``, compressed as the mirrors have it."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of files in bytes, by path."""

    def __str__(self) -> str:
        return f"Debian {self.version} ({self.codename}) of {self.date}"

    def source(self, name: str) -> Source:
        """Return the file ``main/NAME``, in the best compression that the release has it in.

        Raises:
            UserError: the release has no such file.
        """
        for suffix in COMPRESSED:
            if digest := self.files.get(name + suffix):
                place, size = f"dists/{self.codename}/main/{name}{suffix}", self.sizes.get(name + suffix, 0)
                return Source(place, digest=f"sha256:{digest}", terms=TERMS, size=size)
        raise UserError(f"Debian {self.version} ({self.codename}) has no file main/{name}: choose another variant")


def in_release(codename: str) -> Source:
    """Return the signed list of a release's files.

    Raises:
        UserError: the name cannot be that of a release.
    """
    if not _CODENAME.fullmatch(codename):
        raise UserError(f"{codename!r} is not the name of a release of Debian, such as bookworm")
    return Source(f"dists/{codename}/InRelease", terms=TERMS, size=LIST_SIZE)


def apt_mirrors() -> tuple[str, ...]:
    """Return the addresses that this machine's apt takes packages from; none where there is no apt."""
    if shutil.which("apt-get") is None:
        return ()
    # without the second option apt names only what it has fetched already, which on a fresh machine is nothing
    form = ["--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    command = ["apt-get", "indextargets", "--no-release-info", *form]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        print(f"prepare: apt-get names no mirror: {answer.stderr.strip()}", file=sys.stderr, flush=True)
        return ()
    repositories = (line.split() for line in answer.stdout.splitlines())
    addresses = (words[0].rstrip("/") for words in repositories if "security" not in words[-1])
    return tuple(dict.fromkeys(a for a in addresses if a.startswith(("http://", "https://"))))


def read_release(path: Path, codename: str, verified: str | None = None) -> Release:
    """Read what an ``InRelease`` says, from its signed part alone.

    Args:
        verified: what gpgv put out of it; nothing else is read then.

    Raises:
        UserError: the file is no signed list of this release, or the signature is not Debian's.
    """
    content = path.read_text(encoding="utf-8", errors="replace")
    signed = _CLEARSIGNED.fullmatch(content)
    if signed is None:
        raise UserError(f"{path} is no signed list of files: give another mirror")
    text = signed["text"] if verified is None else verified
    fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", text, re.MULTILINE))
    if (fields.get("Origin"), fields.get("Codename")) != ("Debian", codename):
        told = f"{fields.get('Origin', 'an unnamed origin')} {fields.get('Codename', '')}".rstrip()
        raise UserError(f"{path} is a list of {told}, not of Debian {codename}: give a mirror of Debian")
    _, _, sums = text.partition("\nSHA256:\n")
    files, sizes = {}, {}
    for line in sums.split("\n"):
        listed = _LISTED.fullmatch(line)
        if listed is None:
            break
        if listed["path"].startswith("main/") and listed["path"].endswith(COMPRESSED):
            name = listed["path"].removeprefix("main/")
            files[name], sizes[name] = listed["sha256"], int(listed["size"])
    return Release(codename, fields.get("Version", "testing"), fields.get("Date", ""), files, sizes)


def check_signature(path: Path) -> tuple[str, str | None]:
    """Check that Debian's archive has signed a list of files, where this machine has what that takes.

    Returns:
        What was checked, in a sentence, and the text that is signed; None where nothing was checked.

    Raises:
        UserError: it has not.
    """
    keyring = next((file for name in KEYRINGS if (file := KEYRING_FOLDER / name).is_file()), None)
    if shutil.which("gpgv") is None or keyring is None:
        missing = "gpgv" if keyring else f"{KEYRINGS[0]} (package debian-archive-keyring)"
        return f"the signature of {path.name} was not checked, because {missing} is not installed", None
    command = ["gpgv", "--status-fd", "2", "--keyring", str(keyring), "--output", "-", str(path)]
    answer = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    # one key that this machine does not know yet makes gpgv fail, although the others have signed
    verdicts = {line.split()[1] for line in answer.stderr.splitlines() if line.startswith("[GNUPG:] ")}
    if "GOODSIG" not in verdicts or "BADSIG" in verdicts:
        raise UserError(f"{path} is not signed by a key of {keyring}: give another mirror ({answer.stderr.strip()})")
    return f"the signature of {path.name} is that of Debian's archive", answer.stdout


def difference(pinned: Release, offered: Release, names: Iterable[str]) -> str:
    """Say why a mirror's release is not the pinned one for these files; empty where it is."""
    wanted = [pinned.source(name).name.partition("/main/")[2] for name in names]
    other = [path for path in wanted if offered.files.get(path) != pinned.files[path]]
    if not other:
        return ""
    return (
        f"the mirror has Debian {offered.version} of {offered.date}, whose {' and '.join(other)} differ from those of "
        f"Debian {pinned.version}, for which the corpus is defined: give a mirror that still has it, "
        f"or take what is there by --release {offered.codename}"
    )

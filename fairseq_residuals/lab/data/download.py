"""Files from elsewhere: several addresses each, resumed where they broke off, checked by their digest.

A digest that is known is demanded; of the others the SHA-256 is noted in ``SHA256SUMS`` beside the downloads (in the
format of ``sha256sum``) the first time, and demanded ever after. A folder of the user's, the mirror, stands in for any
address, and is where files lie that cannot be downloaded; a mirror may also be an address. Files lie in it by name. The
program curl downloads: it resumes, follows redirections, and knows proxies and certificates.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairseq_residuals.plugin.documents import read_text
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.atomic_write import atomic_write

SUMS, LOCK = "SHA256SUMS", ".SHA256SUMS.lock"  # another than that of who prepares in the same folder
ATTEMPTS = 5
GONE = ("401", "403", "404", "410")
"""Answers that another attempt will not change."""
NOTHING_LEFT = "416"
"""The answer to who asks for more of a file than there is."""
TOLD = "%{http_code} %{content_type}\n%{errormsg}"
"""Format of what curl prints when it is done."""
NO_RANGES = 33
"""Exit status of curl where a server cannot go on where an earlier call broke off."""


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """Return the hexadecimal digits of a file's digest.

    Args:
        algorithm: a name that :mod:`hashlib` knows.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def differs_from(stated: str, path: Path) -> str:
    """Return how a file's digest differs from the one that is stated, in words that follow its name; "" if not.

    Args:
        stated: an algorithm, a colon, and hexadecimal digits.
    """
    algorithm, _, right = stated.partition(":")
    found = digest_of(path, algorithm)
    return "" if found == right else f"has the {algorithm} {found} and should have {right}"


@dataclass(frozen=True)
class Source:
    """A file that somebody else publishes."""

    name: str
    """Name of the file here; unique among the sources of a corpus. With a ``/`` at its end it is a user's folder."""
    urls: tuple[str, ...] = ()
    """The same file at different places, tried in turn; none if it cannot be downloaded."""
    digest: str = ""
    """``md5:``, ``sha1:`` or ``sha256:`` and hexadecimal digits, if its publisher or a tool that uses it states one."""
    terms: str = ""
    """Source of a file that cannot be downloaded, or only sometimes: where a user gets it."""

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")

    def file(self, name: str) -> Source:
        """Return a file of a folder."""
        return Source(self.name + name, terms=self.terms)


@dataclass
class Downloads:
    """A folder of downloads, and perhaps a mirror that is looked into first."""

    folder: Path
    mirror: Path | None = None
    digests: Mapping[str, str] | None = None
    """Digests of stand-ins, by name; the published ones do not hold for them."""
    addresses: tuple[str, ...] = ()
    """Mirrors elsewhere, tried in turn before the addresses of a source."""
    patience: float = 1.0
    """Seconds before the second attempt; doubled for each further one."""

    def fetch(self, source: Source) -> Path:
        """Return where the file is, after it has been downloaded if need be, and checked.

        Raises:
            UserError: it cannot be had, or is not what it was or should be; nothing is left that looks like it then.
        """
        with locked(self.folder, LOCK, wait=True) as lock:  # preparations that run side by side share the folder
            own = self.mirror / source.name if self.mirror else None
            path = own if own and own.is_file() else self.folder / source.name
            if not path.is_file():
                self._download(source, path, lock)
            elif wrong := self._differs(source, path):
                or_else = f", or remove its line from {self.folder / SUMS} if it is right"
                raise UserError(f"{path} {wrong}: replace it{'' if self._stated(source) else or_else}")
        return path

    def forget(self, source: Source) -> None:
        """Remove what was downloaded (never what lies in the mirror) and what was noted about its contents."""
        with locked(self.folder, LOCK, wait=True):
            if not source.is_folder:
                (self.folder / source.name).unlink(missing_ok=True)
            recorded = self._recorded()
            kept = {name: digest for name, digest in recorded.items() if not _belongs(name, source)}
            if kept != recorded:
                self._record(kept)

    def _download(self, source: Source, path: Path, lock: int) -> None:
        urls = (*(f"{address.rstrip('/')}/{source.name}" for address in self.addresses), *source.urls)
        if not urls:
            place = self.mirror or "the folder that MIRROR (or --mirror) names"
            raise UserError(f"{source.name} cannot be downloaded: {source.terms}; put it into {place} under this name")
        path.parent.mkdir(parents=True, exist_ok=True)
        reasons: dict[str, str] = {}
        for number, url in enumerate(urls):
            # what another address began may be another file
            part = path.with_name(f"{path.name}.{number}.part")
            for attempt in range(ATTEMPTS):
                begun = part.is_file()
                status, answer, wrong = transfer(url, part, lock)
                if answer == NOTHING_LEFT and begun:  # the part is whole, or of another file
                    known = self._stated(source) or self._recorded().get(source.name)
                    status, wrong = 0, "" if known else wrong
                reasons[url] = wrong or self._differs(source, part)
                if not reasons[url]:
                    os.replace(part, path)
                    return
                if status in (0, NO_RANGES):
                    part.unlink(missing_ok=True)
                print(f"prepare: {url}: {reasons[url]}", file=sys.stderr, flush=True)
                # what was wrong may be in the part that an earlier attempt left
                if answer in GONE or (status == 0 and not begun):
                    break
                if attempt + 1 < ATTEMPTS:
                    time.sleep(self.patience * 2**attempt)
        told = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
        elsewhere = f" ({source.terms})" if source.terms else ""
        raise UserError(f"{source.name} could not be downloaded{elsewhere}: {told}")

    def _stated(self, source: Source) -> str:
        return source.digest if self.digests is None else self.digests.get(source.name, "")

    def _differs(self, source: Source, path: Path) -> str:
        """Return what is wrong with the file, in words that follow its name, or ""; a new digest is noted."""
        stated = self._stated(source)
        wrong = differs_from(stated, path) if stated else ""
        if wrong:
            return wrong
        # an archive may have gigabytes: what was just compared is not computed again
        found = stated.removeprefix("sha256:") if stated.startswith("sha256:") else digest_of(path)
        recorded = self._recorded()
        if not stated and recorded.get(source.name, found) != found:
            return f"has the sha256 {found} and had {recorded[source.name]} before"
        self._record(recorded | {source.name: found})
        return ""

    def _record(self, sums: dict[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.folder / SUMS) as new:
            new.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())), encoding="utf-8")

    def _recorded(self) -> dict[str, str]:
        sums = self.folder / SUMS
        if not sums.is_file():
            return {}
        pairs = [line.partition("  ") for line in read_text(sums).splitlines()]
        if not all(digest and name for digest, _, name in pairs):
            raise UserError(f"{sums} is damaged: a line has to be a digest, two spaces and a name; remove the file")
        return {name: digest for digest, _, name in pairs}


def _belongs(name: str, source: Source) -> bool:
    return name.startswith(source.name) if source.is_folder else name == source.name


def transfer(url: str, part: Path, lock: int) -> tuple[int, str, str]:
    """Let curl fetch ``url`` into ``part``, going on where an earlier call broke off.

    Args:
        lock: a descriptor that curl holds too: if this process is killed, no other one writes beside it.

    Returns:
        curl's exit status, the server's (such as 404), and words on what is wrong, "" where nothing seems to be.

    Raises:
        UserError: curl is not installed.
    """
    shown = ["--progress-bar"] if sys.stderr.isatty() else ["--silent"]
    limits = ["--connect-timeout", "60", "--speed-limit", "1", "--speed-time", "60", "--proto-redir", "=http,https"]
    command = ["curl", "--fail", "--location", "--continue-at", "-", *shown, *limits, "--output", str(part)]
    command += ["--user-agent", "fairseq-residuals", "--write-out", TOLD, "--url", url]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, pass_fds=(lock,), check=False)
    except FileNotFoundError:
        raise UserError("curl, which downloads, is not installed: install it, or name a --mirror") from None
    said, _, wrong = done.stdout.partition("\n")
    answer, _, kind = said.partition(" ")
    if done.returncode == 0:
        wrong = "a web page came instead of the file" if kind.startswith("text/html") else ""
    return done.returncode, answer, wrong

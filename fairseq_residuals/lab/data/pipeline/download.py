"""Files from elsewhere: several addresses each, resumed where they broke off, checked by their digest.

A digest that is known is demanded; of the others the SHA-256 is noted in ``SHA256SUMS`` beside the downloads (in the
format of ``sha256sum``) the first time, and demanded ever after. A folder of the user's, the mirror, stands in for any
address, and is where files lie that cannot be downloaded. A mirror may also be an address below which files lie by
name.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, url2pathname, urlopen

from fairseq_residuals.lab.data.pipeline.archives import has_its_end
from fairseq_residuals.lab.data.pipeline.file_digests import differs_from, digest_of
from fairseq_residuals.lab.data.pipeline.parallel_map import progress
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import read_record, read_text
from modern_fairseq.atomic_write import atomic_write

SUMS = "SHA256SUMS"
BLOCK = 1 << 20
ATTEMPTS = 5
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
GONE = (401, 403, 404, 410)
"""Answers that another attempt will not change."""


@dataclass(frozen=True)
class Source:
    """A file that somebody else publishes."""

    name: str
    """What it is called here; unique among the sources of a corpus. With a ``/`` at its end it is a user's folder."""
    urls: tuple[str, ...] = ()
    """The same file at different places, tried in turn; none if it cannot be downloaded."""
    digest: str = ""
    """``md5:``, ``sha1:`` or ``sha256:`` and hexadecimal digits, if its publisher or a tool that uses it states one."""
    terms: str = ""
    """Of a file that cannot be downloaded (or only sometimes): where a user gets it."""
    size: int = 0
    """Bytes, where its publisher or a tool that uses it states them; 0: unknown."""

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")

    def file(self, name: str) -> Source:
        """Return a file of a folder."""
        return Source(self.name + name, terms=self.terms)

    def places(self) -> Iterator[str]:
        """Return where it may lie in a mirror: by name, or as ``wget -x`` stores it."""
        yield self.name
        for url in self.urls:
            parts = urlsplit(url)
            if not parts.query:
                yield f"{parts.netloc}{parts.path}"


def is_address(place: str) -> bool:
    """Whether a ``MIRROR`` setting names a place elsewhere, and no folder."""
    return place.startswith(("http://", "https://"))


def mirror_folder(place: str) -> Path:
    """Return the folder that a ``MIRROR`` setting names: a path, or a ``file://`` address.

    Raises:
        UserError: there is no such folder.
    """
    folder = Path(url2pathname(urlsplit(place).path)) if place.startswith("file://") else Path(place)
    if not folder.is_dir():
        raise UserError(f"the mirror {place} is not a folder: give a local folder or a file:// address")
    return folder


@dataclass
class Downloads:
    """A folder of downloads, and perhaps a mirror that is looked into first."""

    folder: Path
    mirror: Path | None = None
    digests: Mapping[str, str] | None = None
    """Of stand-ins, by name; the published ones do not hold for them."""
    addresses: tuple[str, ...] = ()
    """Mirrors elsewhere, tried in turn before the addresses of a source."""
    patience: float = 1.0
    """Seconds before the second attempt; doubled for each further one."""
    _verified: set[str] = field(default_factory=set)

    def fetch(self, source: Source) -> Path:
        """Return where the file is, after it has been downloaded if need be, and checked.

        Raises:
            UserError: it cannot be had, or is not what it was or should be; nothing is left that looks like it then.
        """
        with locked(self.folder, wait=True):  # preparations that run side by side share the folder
            path = self._in_mirror(source) or self.folder / source.name
            if not path.is_file():
                self._download(source, path)
            elif source.name not in self._verified:
                wrong = self._differs(source, path)
                if wrong:
                    or_else = f", or remove its line from {self.folder / SUMS} if it is right"
                    raise UserError(f"{path} {wrong}: replace it{'' if self._stated(source) else or_else}")
        self._verified.add(source.name)
        return path

    def unobtainable(self, source: Source) -> str:
        """Return why the file cannot be had, as far as this machine alone can tell; "" where it may be."""
        if source.urls or self.addresses or self._in_mirror(source) or (self.folder / source.name).exists():
            return ""
        return self._where_to_put(source)

    def _where_to_put(self, source: Source) -> str:
        folder = self.mirror or "the folder that MIRROR (or --mirror) names"
        return f"{source.name} cannot be downloaded: {source.terms}; put it into {folder} under this name"

    def forget(self, source: Source) -> None:
        """Remove what was downloaded (never what lies in the mirror) and what was noted about its contents."""
        with locked(self.folder, wait=True):
            if not source.is_folder:
                (self.folder / source.name).unlink(missing_ok=True)
            self._verified.discard(source.name)
            recorded = self._recorded()
            kept = {name: digest for name, digest in recorded.items() if not _belongs(name, source)}
            if kept != recorded:
                self._record(kept)

    def _in_mirror(self, source: Source) -> Path | None:
        if self.mirror is None:
            return None
        there = Path.is_dir if source.is_folder else Path.is_file
        return next((path for place in source.places() if there(path := self.mirror / place)), None)

    def _download(self, source: Source, path: Path) -> None:
        urls = (*(f"{address.rstrip('/')}/{source.name}" for address in self.addresses), *source.urls)
        if not urls:
            raise UserError(self._where_to_put(source))
        part = path.with_name(f"{path.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        reasons: dict[str, str] = {}
        promising = list(urls)
        for attempt in range(ATTEMPTS):
            for url in tuple(promising):
                try:
                    length_known = transfer(url, part)
                    # what is compared with a digest proves itself; of the rest the first download has to be whole
                    if not length_known and not self._digest_known(source) and not has_its_end(part):
                        _forget(part)
                        raise OSError("the server does not say how long the file is, so that it may have broken off")
                    reasons[url] = self._differs(source, part)
                    if not reasons[url]:
                        os.replace(part, path)
                        _forget(part)
                        return
                    _forget(part)
                    promising.remove(url)
                except (OSError, http.client.HTTPException) as error:
                    reasons[url] = str(error) or type(error).__name__
                    if isinstance(error, HTTPError) and error.code in GONE:
                        promising.remove(url)
                print(f"prepare: {url}: {reasons[url]}", file=sys.stderr, flush=True)
            if not promising:
                break
            if attempt + 1 < ATTEMPTS:
                time.sleep(self.patience * 2**attempt)
        told = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
        elsewhere = f" ({source.terms})" if source.terms else ""
        raise UserError(f"{source.name} could not be downloaded{elsewhere}: {told}")

    def _stated(self, source: Source) -> str:
        return source.digest if self.digests is None else self.digests.get(source.name, "")

    def _digest_known(self, source: Source) -> bool:
        return bool(self._stated(source)) or source.name in self._recorded()

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


def transfer(url: str, part: Path) -> bool:
    """Fetch ``url`` into ``part``, going on where an earlier call broke off if the server's file is still the same.

    Returns:
        Whether the server said where the file ends, so that all of it has arrived.

    Raises:
        OSError, HTTPException: it failed; what has arrived is kept.
    """
    note = _note(part)
    begun = read_record(note) if note.is_file() and part.is_file() else {}
    headers = {"User-Agent": "fairseq-residuals"}
    if begun.get("url") == url and "version" in begun:
        headers |= {"Range": f"bytes={part.stat().st_size}-", "If-Range": begun["version"]}
    with _open(url, headers, part) as response:
        if response.headers.get_content_type() == "text/html":
            raise OSError("a web page came instead of the file")
        done = part.stat().st_size if response.status == 206 else 0
        span = _RANGE.fullmatch(response.headers.get("Content-Range", "")) if done else None
        if done and (span is None or int(span[1]) != done):
            raise OSError("the server went on at another place than where it was asked to")
        total = _whole_length(response, done, span[2] if span else "*")
        # of a body in chunks the last one is empty; http.client raises where it is missing
        length_known = total is not None or getattr(response, "chunked", False)
        version = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if done == 0:
            note.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            if version and not version.startswith("W/"):  # a weak one does not promise the same bytes
                note.write_text(json.dumps({"url": url, "version": version}), encoding="utf-8")
        with part.open("ab") as out, progress(total, part.name.removesuffix(".part"), "B") as bar:
            bar.update(done)
            while block := response.read(BLOCK):
                out.write(block)
                bar.update(len(block))
    if total is not None and part.stat().st_size != total:
        raise OSError(f"broke off after {part.stat().st_size:,} of {total:,} bytes")
    return length_known


def _whole_length(response: Any, done: int, of_range: str) -> int | None:
    """Return bytes of the whole file, of which ``done`` were there before; None where the server does not say."""
    length = response.headers.get("Content-Length") or ""
    if length.isdecimal():
        return done + int(length)
    return int(of_range) if of_range.isdecimal() else None


def _open(url: str, headers: dict[str, str], part: Path) -> Any:
    try:
        return urlopen(Request(url, headers=headers), timeout=60)
    except HTTPError as error:
        if error.code == 416:  # there is nothing beyond what has arrived: it cannot be told whether that is right
            _forget(part)
        raise


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)

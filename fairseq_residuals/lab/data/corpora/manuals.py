"""Manuals in Debian's packages, pages of HTML: which there are, and the prose of a page.

The packages are those of the point release for which :mod:`.debian` is defined, pinned by their SHA-256.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from fairseq_residuals.lab.data.archives import reading
from fairseq_residuals.lab.data.corpora.debian_descriptions import LONGEST_BODY, Example, clean, is_language
from fairseq_residuals.lab.data.download import Source

TERMS = (
    "every mirror of Debian 12 has it until a point release after 12.15 replaces it; if this machine's apt names none "
    "(apt-get indextargets), name one by --mirror: an address such as http://HOST/debian, or a folder with dists/ in it"
)


class Manual(NamedTuple):
    """A package, and which of its files are pages in English."""

    source: Source
    pages: str
    """Pattern of the names of the pages."""


def _manual(path: str, sha256: str, pages: str = "*.html") -> Manual:
    return Manual(Source(f"pool/main/{path}", digest=f"sha256:{sha256}", terms=TERMS), pages)


MANUALS = (
    _manual(
        "a/apache2/apache2-doc_2.4.68-1~deb12u1_all.deb",
        "cee8fe80ffb5de2744cd690c3d795b489e43a1c44c4e3a634c521642f22d7835",
        "*.html.en",
    ),
    _manual(
        "c/cmake/cmake-doc_3.25.1-1_all.deb",
        "6e805a758ffed87cc7ea234cf0a7a1bb8ae78b93d8b5783e7fb989a6320f8133",
    ),
    _manual(
        "e/erlang/erlang-doc_25.2.3+dfsg-1+deb12u4_all.deb",
        "7d172cecfdd9c2930b27c776ad226ffcc84670375cf830c79ee41c6944e8a1c8",
    ),
    _manual(
        "g/gimp-help/gimp-help-en_2.10.34-2_all.deb",
        "a2deec76763aaf2fcdd197bac0736cdcb0770ba993d48d233329e1c92b0bfe36",
    ),
    _manual(
        "g/git/git-doc_2.39.5-0+deb12u3_all.deb",
        "3c89668a11053a6bafade3de1f611f4613db31e082af63f43d8c5b69ad8795ec",
    ),
    _manual(
        "g/gnome-user-docs/gnome-user-docs_43.0-2_all.deb",
        "0d635a840747958ca84da778b40d341f1155603851f922c9a171f5a181d6a39f",
        "usr/share/help/C/*.page",
    ),
    _manual(
        "libr/libreoffice/libreoffice-help-en-us_7.4.7-1+deb12u14_all.deb",
        "8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712",
        "usr/share/libreoffice/help/en-US/text/*.html",
    ),
    _manual(
        "l/linux/linux-doc-6.1_6.1.176-1_all.deb",
        "0d843674607703b9ef8c1db5e715c38ed52ff23574feabfe0d961d552126859f",
    ),
    _manual(
        "o/octave/octave-doc_7.3.0-2_all.deb",
        "b27897cc7e3d688daa5cb8f8d1ea47077f3fbd205ce32e22522200ff0c1eadd5",
    ),
    _manual(
        "p/postgresql-15/postgresql-doc-15_15.18-0+deb12u1_all.deb",
        "3c598277a463c44d672daa2c335deb8d8252e1852fb025fd4578ea2d9a1b90f0",
    ),
    _manual(
        "p/python-django/python-django-doc_3.2.25-0+deb12u3_all.deb",
        "33319c8e45b95693603213442ccf9bcee933ef338488115203ad25a0e01c696f",
    ),
    _manual(
        "p/python3.11/python3.11-doc_3.11.2-6+deb12u8_all.deb",
        "50eb63e7f636c4281e9ce1b8f10386f1def42159eddce34fc1f41c46261df71b",
    ),
    _manual(
        "s/sqlite3/sqlite3-doc_3.40.1-2+deb12u2_all.deb",
        "466e30d7066e2641fa13e56bc662a2ad521b8cc9c17dde9c9dac3d4f105e32f2",
    ),
)
PROSE = {"p", "li", "dd", "dt", "td", "h1", "h2", "h3", "h4", "h5", "h6", "title", "caption", "item"}
"""Elements with paragraphs in them; those of Mallard, GNOME's format, as well."""
OTHER = {"body", "div", "ul", "ol", "dl", "table", "tr", "pre", "script", "style", "screen"}
"""Elements around paragraphs, or with text that is no prose."""
PERMALINK = "\u00b6"
"""Sign behind the headings of Sphinx."""


class Prose(HTMLParser):
    """The paragraphs of a page: what stands between the tags of blocks, where the last one opened is of prose."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.paragraphs: list[str] = []
        self._block = ""
        self._text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in PROSE or tag in OTHER:
            self._end()
            self._block = tag

    def handle_endtag(self, tag: str) -> None:
        if tag in PROSE or tag in OTHER:
            self._end()
            self._block = ""

    def handle_data(self, data: str) -> None:
        if self._block in PROSE:
            self._text.append(data)

    def _end(self) -> None:
        if text := clean("".join(self._text).replace(PERMALINK, ""), "en"):
            self.paragraphs.append(text)
        self._text.clear()


def pages(manual: Manual, archive: Path) -> Iterator[Example]:
    """Yield the paragraphs of a package's pages in the order of their names; those of a page are a group."""
    with reading(archive) as files:
        found = {name: text.read() for name, text in files if fnmatch.fnmatchcase(name, manual.pages)}
    for name in sorted(found):
        for text in Prose(found[name].decode("utf-8", errors="replace")).paragraphs:
            if is_language(text) and len(text.split()) <= LONGEST_BODY:
                yield Example(f"{archive.name}/{name}", text, (text,))

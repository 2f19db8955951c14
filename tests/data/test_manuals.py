"""Manuals in packages of Debian, from small packages of the published layout to data for fairseq."""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path

import pytest
from prepared import run
from published_layouts import STAND_IN, Files, random_lines, write_tar

from fairseq_residuals.lab.data.archives import reading
from fairseq_residuals.lab.data.corpora import find_corpus
from fairseq_residuals.lab.data.corpora.manuals import MANUALS, Prose
from fairseq_residuals.lab.data.corpus import Job, prepare
from fairseq_residuals.lab.data.download import Downloads
from fairseq_residuals.wirings.core.errors import UserError

PAGE = """<!DOCTYPE html><html><head><title>A title</title><style>p { a: b }</style><script>if (a < b) c();</script>
</head><body><div class="nav"><a href="x.html">Next</a></div><h1>Heads<a href="#h">\u00b6</a></h1>
<p>It has <code>code</code> &amp; \u201cquotes\u201d,
  over two lines.<p>Another without an end
<ul><li>One <b>item</b><li><p>a paragraph in an item</p> <pre>print(1)</pre></ul>
<table><tr><td>a cell</table><dl><dt>A term<dd>means this</dl> outside of all</body></html>"""


def test_prose_of_a_page() -> None:
    """Each block is a paragraph, whether its tag is closed or not; code in blocks and navigation are none."""
    assert Prose(PAGE).paragraphs == [
        "A title",
        "Heads",
        'It has code & "quotes", over two lines.',
        "Another without an end",
        "One item",
        "a paragraph in an item",
        "a cell",
        "A term",
        "means this",
    ]
    assert Prose("").paragraphs == []


def package(files: Files) -> bytes:
    """Return a package of Debian: an archive of ``ar`` with three members, whose data have an even size or one more."""
    tar = io.BytesIO()
    write_tar(tar, files)
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": lzma.compress(tar.getvalue())}
    content = b"!<arch>\n"
    for name, data in members.items():
        content += (
            f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    return content


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """Packages of twenty pages of three paragraphs, a file of another kind, and one in another language."""
    for number, manual in enumerate(MANUALS):
        files: Files = {"./usr/share/doc/x.txt": b"no page", "./usr/share/help/de/x.page": b"<p>nicht auf Englisch</p>"}
        for page in range(20):
            said = random_lines(f"{number} {page}", 3, "en")["en"]
            name = manual.pages.replace("*", f"page{page:02}")
            files[f"./{name}"] = "".join(f"<p>{line}</p>\n" for line in said).encode()
        path = tmp_path / "mirror" / manual.source.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(package(files))
    (tmp_path / "mirror" / STAND_IN).write_text(json.dumps({"held_out": 60, "merges": 60}))
    return tmp_path / "mirror"


def test_from_packages_to_data(mirror: Path, tmp_path: Path) -> None:
    """Every page is in one data set, whole, and a blank line follows it."""
    found = run("debian", tmp_path / "out", mirror, "manuals")
    pages = {
        name: [page.strip("\n").split("\n") for page in "\n".join(found.words(f"text/{name}")).split("\n\n")]
        for name in ("train", "valid", "test")
    }
    assert [len(page) for parts in pages.values() for page in parts] == [3] * 20 * len(MANUALS)
    assert [len(parts) for parts in pages.values()] == [20 * len(MANUALS) - 40, 20, 20]
    expected = {
        tuple(line.replace(",", " ,").replace(".", " .") for line in random_lines(f"{number} {page}", 3, "en")["en"])
        for number in range(len(MANUALS))
        for page in range(20)
    }
    assert {tuple(page) for parts in pages.values() for page in parts} == expected
    assert found.binarized("test")


def test_what_is_no_package(mirror: Path, tmp_path: Path) -> None:
    """Another digest than the published one, an archive without data, and one cut off: refused."""
    for content, words in {
        b"!<arch>\n": "has no data.tar.xz",
        package({"./a.html": b"x"})[:-40]: "truncated or damaged",
        b"!<arch>\n" + b"x" * 60: "truncated or damaged",
    }.items():
        (tmp_path / "x.deb").write_bytes(content)
        with pytest.raises(UserError, match=words), reading(tmp_path / "x.deb") as files:
            list(files)
    downloads = Downloads(tmp_path / "downloads", mirror)
    with pytest.raises(UserError, match="has the sha256"):
        prepare(find_corpus("debian"), "manuals", Job(tmp_path / "out", downloads, 1))

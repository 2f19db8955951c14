"""Downloads from a server on this machine that can break off, change its file, and lie."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fairseq_residuals.lab.data.download import ATTEMPTS, SUMS, Downloads, Source
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.wirings.core.errors import UserError

CONTENTS = bytes(range(256)) * 5000
CLOSED = r"transfer closed with \d+ bytes remaining|end of response with \d+ bytes missing"  # by curl's version


@dataclass
class Served:
    """What the server has and how it behaves; each request's path and Range header is noted."""

    files: dict[str, bytes] = field(default_factory=dict)
    breaks_after: list[int] = field(default_factory=list)
    """Bytes of the body after which the connection is cut, for the next requests."""
    knows_ranges: bool = True
    content_type: str = "application/gzip"
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""


class Handler(BaseHTTPRequestHandler):
    served: Served

    def do_GET(self) -> None:
        served, wanted = self.served, self.headers.get("Range")
        served.requests.append((self.path, wanted))
        contents = served.files.get(self.path)
        if contents is None:
            self.send_error(404)
            return
        start = 0
        if wanted and served.knows_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(contents):  # as nginx and Apache answer
                self.send_response(416)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Range", f"bytes */{len(contents)}")
                self.send_header("Content-Length", "6")
                self.end_headers()
                self.wfile.write(b"<html>")
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", served.content_type)
        self.send_header("Content-Length", str(len(contents) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(contents) - 1}/{len(contents)}")
        self.end_headers()
        body = contents[start:]
        self.wfile.write(body[: served.breaks_after.pop(0)] if served.breaks_after else body)

    def log_message(self, *args: object) -> None:
        """Nothing to stderr."""


@pytest.fixture
def served() -> Iterator[Served]:
    state = Served({"/x.tgz": CONTENTS})
    handler = type("Handler", (Handler,), {"served": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.address = f"http://127.0.0.1:{server.server_port}"
        yield state
        server.shutdown()
        thread.join()


def source(served: Served, *paths: str, digest: str = "") -> Source:
    return Source("x.tgz", tuple(served.address + path for path in paths or ("/x.tgz",)), digest)


def downloads(folder: Path, **more: object) -> Downloads:
    return Downloads(folder / "downloads", patience=0, **more)  # type: ignore[arg-type]


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "downloads").rglob("*") if not path.name.endswith(".lock"))


def test_a_file_is_downloaded_once_and_its_digest_recorded(served: Served, tmp_path: Path) -> None:
    for _ in range(2):
        assert downloads(tmp_path).fetch(source(served)).read_bytes() == CONTENTS
    assert served.requests == [("/x.tgz", None)]
    sums = (tmp_path / "downloads" / SUMS).read_text()
    assert sums == f"{hashlib.sha256(CONTENTS).hexdigest()}  x.tgz\n"
    assert left(tmp_path) == [SUMS, "x.tgz"]


def test_the_next_address_serves_when_one_does_not(served: Served, tmp_path: Path) -> None:
    path = downloads(tmp_path).fetch(source(served, "/gone.tgz", "/x.tgz"))
    assert path.read_bytes() == CONTENTS
    assert [name for name, _ in served.requests] == ["/gone.tgz", "/x.tgz"]


def test_a_broken_download_goes_on_where_it_broke(served: Served, tmp_path: Path) -> None:
    served.breaks_after = [1000, 500_000]
    assert downloads(tmp_path).fetch(source(served)).read_bytes() == CONTENTS
    assert [wanted for _, wanted in served.requests] == [None, "bytes=1000-", "bytes=501000-"]
    assert left(tmp_path) == [SUMS, "x.tgz"]


def test_another_process_goes_on_where_one_was_ended(served: Served, tmp_path: Path) -> None:
    served.breaks_after = [1000] + [0] * (ATTEMPTS - 1)
    with pytest.raises(UserError, match=rf"could not be downloaded.*({CLOSED})"):
        downloads(tmp_path).fetch(source(served))
    assert left(tmp_path) == ["x.tgz.0.part"]
    served.requests.clear()
    assert downloads(tmp_path).fetch(source(served)).read_bytes() == CONTENTS
    assert served.requests == [("/x.tgz", "bytes=1000-")]


def test_it_starts_anew_where_a_server_cannot_give_a_part(served: Served, tmp_path: Path) -> None:
    served.breaks_after, served.knows_ranges = [1000], False
    assert downloads(tmp_path).fetch(source(served)).read_bytes() == CONTENTS
    assert [wanted for _, wanted in served.requests] == [None, "bytes=1000-", None]


def test_a_part_that_is_whole_is_the_file(served: Served, tmp_path: Path) -> None:
    """As Ctrl-C leaves it while its digest is computed."""
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/x.tgz.0.part").write_bytes(CONTENTS)
    stated = f"sha256:{hashlib.sha256(CONTENTS).hexdigest()}"
    assert downloads(tmp_path).fetch(source(served, digest=stated)).read_bytes() == CONTENTS
    assert served.requests == [("/x.tgz", f"bytes={len(CONTENTS)}-")]
    assert left(tmp_path) == [SUMS, "x.tgz"]


def test_a_part_that_no_digest_is_known_of_is_not_taken_for_whole(served: Served, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/x.tgz.0.part").write_bytes(CONTENTS + b"more")
    assert downloads(tmp_path).fetch(source(served)).read_bytes() == CONTENTS


@pytest.mark.parametrize("length", (1000, len(CONTENTS), len(CONTENTS) + 9), ids=("cut off", "complete", "longer"))
def test_a_part_of_another_file_is_not_trusted(served: Served, tmp_path: Path, length: int) -> None:
    """The server has another file by now; nothing shows it but the digest."""
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/x.tgz.0.part").write_bytes(b"?" * length)
    stated = f"sha256:{hashlib.sha256(CONTENTS).hexdigest()}"
    assert downloads(tmp_path).fetch(source(served, digest=stated)).read_bytes() == CONTENTS
    assert [wanted for _, wanted in served.requests] == [f"bytes={length}-", None]
    assert left(tmp_path) == [SUMS, "x.tgz"]


def test_without_curl_one_sentence_says_so(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="curl, which downloads, is not installed"):
        downloads(tmp_path).fetch(source(served))


@pytest.mark.parametrize("algorithm", ("md5", "sha1", "sha256"))
def test_a_file_with_another_digest_is_refused_and_removed(served: Served, tmp_path: Path, algorithm: str) -> None:
    right = f"{algorithm}:{hashlib.new(algorithm, CONTENTS).hexdigest()}"
    served.files["/bad.tgz"] = CONTENTS[:-1] + b"!"
    with pytest.raises(UserError, match=f"x.tgz could not be downloaded: .*has the {algorithm} .* and should have"):
        downloads(tmp_path).fetch(source(served, "/bad.tgz", digest=right))
    assert left(tmp_path) == []
    path = downloads(tmp_path).fetch(source(served, "/bad.tgz", "/x.tgz", digest=right))
    assert path.read_bytes() == CONTENTS


def test_a_digest_that_is_stated_counts_more_than_one_that_was_recorded(tmp_path: Path) -> None:
    right = hashlib.sha256(CONTENTS).hexdigest()
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/x.tgz").write_bytes(b"another")
    downloads(tmp_path).fetch(Source("x.tgz"))
    with pytest.raises(UserError, match=rf"has the sha256 \w+ and should have {right}: replace it$"):
        downloads(tmp_path).fetch(Source("x.tgz", (), f"sha256:{right}"))
    (tmp_path / "downloads/x.tgz").write_bytes(CONTENTS)
    with pytest.raises(UserError, match=rf"{right} and had \w+ before: replace it, or remove its line from "):
        downloads(tmp_path).fetch(Source("x.tgz"))
    downloads(tmp_path).fetch(Source("x.tgz", (), f"sha256:{right}"))
    assert (tmp_path / "downloads" / SUMS).read_text() == f"{right}  x.tgz\n"


def test_a_web_page_is_not_the_file(served: Served, tmp_path: Path) -> None:
    served.content_type, served.files["/x.tgz"] = "text/html", b"<html>Quota exceeded</html>"
    with pytest.raises(UserError, match="a web page came instead"):
        downloads(tmp_path).fetch(source(served))
    assert left(tmp_path) == []


def test_a_changed_file_is_noticed_ever_after(served: Served, tmp_path: Path) -> None:
    path = downloads(tmp_path).fetch(source(served))
    path.write_bytes(b"tampered")
    with pytest.raises(UserError, match=r"x\.tgz has the sha256 \w+ and had \w+ before"):
        downloads(tmp_path).fetch(source(served))
    path.unlink()
    served.files["/x.tgz"] = b"tampered at its origin"
    with pytest.raises(UserError, match=r"has the sha256 \w+ and had \w+ before"):
        downloads(tmp_path).fetch(source(served))
    assert left(tmp_path) == [SUMS]
    downloads(tmp_path).forget(source(served))
    assert downloads(tmp_path).fetch(source(served)).read_bytes() == b"tampered at its origin"


def test_a_mirror_stands_in_for_any_address(tmp_path: Path) -> None:
    """The user's file is neither copied nor removed."""
    mirror = tmp_path / "mir ror"
    mirror.mkdir()
    (mirror / "x.tgz").write_bytes(b"one")
    wanted = Source("x.tgz", ("https://host.org/a/b.tgz",))
    fetched = downloads(tmp_path, mirror=mirror)
    with ThreadPoolExecutor(1) as pool, locked(tmp_path / "downloads"):  # as where a corpus is prepared in it
        assert pool.submit(fetched.fetch, wanted).result(timeout=60) == mirror / "x.tgz"
    (mirror / "x.tgz").write_bytes(b"another")
    with pytest.raises(UserError, match=r"had \w+ before"):
        downloads(tmp_path, mirror=mirror).fetch(wanted)
    fetched.forget(wanted)
    assert downloads(tmp_path, mirror=mirror).fetch(wanted) == mirror / "x.tgz"
    assert left(tmp_path) == [SUMS]
    # an address may be a local file
    (tmp_path / "x").write_bytes(CONTENTS)
    assert downloads(tmp_path).fetch(Source("y.tgz", ((tmp_path / "x").as_uri(),))).read_bytes() == CONTENTS


def test_what_cannot_be_downloaded_says_where_it_comes_from(tmp_path: Path) -> None:
    licensed = Source("ldc/", terms="it is sold by X")
    with pytest.raises(UserError, match=r"ldc/train\.en cannot be downloaded: it is sold by X; put it into .*MIRROR"):
        downloads(tmp_path).fetch(licensed.file("train.en"))
    with pytest.raises(UserError, match=f"put it into {tmp_path}"):
        downloads(tmp_path, mirror=tmp_path).fetch(licensed.file("train.en"))
    (tmp_path / "ldc").mkdir()
    (tmp_path / "ldc/train.en").write_text("a\n")
    assert downloads(tmp_path, mirror=tmp_path).fetch(licensed.file("train.en")).read_text() == "a\n"


@pytest.mark.parametrize("text", ["no digest\n", "abc\n", "caf\xe9  x.tgz\n"])
def test_recorded_digests_that_are_damaged(text: str, served: Served, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / SUMS).write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=SUMS):
        downloads(tmp_path).fetch(source(served))

"""Mapping lines over processes, and byte pair encoding: the same as one process, or subword-nmt's commands."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from published_layouts import random_lines, text

from fairseq_residuals.lab.data import bpe, parallel_map
from fairseq_residuals.lab.data.moses import Chain, Tokenize
from fairseq_residuals.wirings.core.errors import UserError

SUBWORD_NMT = Path(sys.executable).with_name("subword-nmt")


def drop_short(line: str) -> str | None:
    return None if len(line) < 3 else line[::-1]


def mapped(
    path: Path, workers: int, monkeypatch: pytest.MonkeyPatch, block: int = 16
) -> tuple[bytes, parallel_map.Result]:
    out = io.BytesIO()
    monkeypatch.setattr(parallel_map, "blocks", lambda file, size=block, cut=parallel_map.blocks: cut(file, size))
    result = parallel_map.map_lines(drop_short, [path, path], out, workers, "test")
    monkeypatch.undo()
    return out.getvalue(), result


def test_lines_keep_their_order_on_any_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{'x' * (n % 7)}{n}" for n in range(400)]
    (tmp_path / "text").write_text("\n".join(lines))  # no end of line at the end
    expected = [line[::-1] for line in lines if len(line) > 2] * 2
    for workers in (1, 3):
        written, result = mapped(tmp_path / "text", workers, monkeypatch)
        assert written.decode().split("\n") == [*expected, ""]
        assert (result.lines, result.malformed) == (len(expected), 0)


def test_lines_that_are_not_utf8_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_bytes(b"abc\n\xffde\nf\xe9g\r\n\n")
    written, result = mapped(tmp_path / "text", 1, monkeypatch)
    assert written == "cba\ned\ufffd\n\rg\ufffdf\n".encode() * 2
    assert (result.lines, result.malformed) == (6, 4)


def double(number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


def test_work_is_read_only_a_little_ahead_and_done_by_other_processes() -> None:
    read = []

    def numbers() -> Iterator[int]:
        for number in range(200):
            read.append(number)
            yield number

    processes = set()
    for done, (value, process) in enumerate(parallel_map.ordered(double, numbers(), workers=2)):
        assert value == 2 * done
        assert len(read) - done <= parallel_map.AHEAD * 2 + 1
        processes.add(process)
    assert len(read) == 200
    assert os.getpid() not in processes


def test_processes_end_with_the_one_that_started_them() -> None:
    """Even if it is killed: the pipe that they all hold is closed then."""
    program = (
        "import time\nfrom fairseq_residuals.lab.data.parallel_map import ordered\n"
        "def slow(number):\n    time.sleep(0.05)\n    return number\n"
        "for number in ordered(slow, range(10**6), 2):\n    print(number, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"0\n"
        started.kill()
        with ThreadPoolExecutor() as reading:  # ends when no process has the pipe open any more
            reading.submit(started.stdout.read).result(timeout=60)


def fail_at_three(number: int) -> int:
    if number == 3:
        raise UserError("three is refused")
    return number


@pytest.mark.parametrize("workers", (1, 2))
def test_an_error_in_a_process_is_the_error_here(workers: int) -> None:
    with pytest.raises(UserError, match="three is refused"):
        list(parallel_map.ordered(fail_at_three, range(100), workers))


def test_counting_lines(tmp_path: Path) -> None:
    for contents, count in ((b"", 0), (b"\n", 1), (b"a", 1), (b"a\nb", 2), (b"a\nb\n", 2), (b"a\r\x0cb\n", 1)):
        (tmp_path / "x").write_bytes(contents)
        assert parallel_map.count_lines(tmp_path / "x") == count


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    paths = []
    for language, lines in random_lines("bpe", 150, "en", "de").items():
        tokenize = Chain((Tokenize(language), str.lower))
        paths.append(tmp_path / f"text.{language}")
        paths[-1].write_bytes(text([tokenize(line) for line in lines]))
    return paths


def run(*argv: str | Path, stdin: bytes) -> bytes:
    return subprocess.run([SUBWORD_NMT, *argv], input=stdin, capture_output=True, check=True).stdout


@pytest.mark.parametrize("workers", (1, 2))
def test_bpe_is_that_of_the_commands(corpus: list[Path], tmp_path: Path, workers: int) -> None:
    both = b"".join(path.read_bytes() for path in corpus)
    expected = run("learn-bpe", "-s", "50", stdin=both)
    assert expected.count(b"\n") == 51
    bpe.learn(corpus, tmp_path / "codes", 50, ())
    assert (tmp_path / "codes").read_bytes() == expected
    out = io.BytesIO()
    parallel_map.map_lines(bpe.Encode(tmp_path / "codes"), corpus, out, workers, "test")
    assert out.getvalue() == run("apply-bpe", "--codes", tmp_path / "codes", stdin=both)


def test_whole_words_are_neither_learned_from_nor_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("<unk> <unk> <unk> ab ab <unk>\n")
    bpe.learn([tmp_path / "text"], tmp_path / "codes", 5, ("<unk>",))
    assert (tmp_path / "codes").read_text() == "#version: 0.2\na b</w>\n"
    monkeypatch.setattr(bpe, "REMEMBERED", 1)  # forgetting must not change anything
    encode = bpe.Encode(tmp_path / "codes", ("<unk>",))
    assert [encode("ab <unk> cab"), encode("ab <unk> cab")] == ["ab <unk> c@@ ab"] * 2
    assert bpe.Encode(tmp_path / "codes")("<unk>") == "<@@ u@@ n@@ k@@ >"


def test_there_must_be_words_to_learn_from(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n \n")
    with pytest.raises(UserError, match="no words to learn"):
        bpe.learn([tmp_path / "text"], tmp_path / "codes", 5, ())

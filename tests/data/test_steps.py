"""Steps: done once, done again when what they depend on changes, and never half done."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fairseq_residuals.lab.data.steps import STAMP, Step, share
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.mistakes import explain


class Recorder:
    """Makes steps that note that they were run and write what they were made from."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def step(self, name: str, *after: Step, **parameters: object) -> Step:
        def make(folder: Path, *sources: Path) -> None:
            self.ran.append(name)
            made_of = [(source / "made").read_text() for source in sources]
            (folder / "made").write_text(f"{name}{parameters}({','.join(made_of)})")

        return Step(name, make, parameters, after)


def test_a_step_is_done_once_and_after_those_it_builds_on(tmp_path: Path) -> None:
    note = Recorder()
    first = note.step("work/first", n=1)
    second, third = note.step("second", first), note.step("work/third", first)
    last = note.step("last", second, third)
    for _ in range(2):
        folder = last.ensure(tmp_path)
    assert note.ran == ["work/first", "second", "work/third", "last"]
    assert (folder / "made").read_text() == "last{}(second{}(work/first{'n': 1}()),work/third{}(work/first{'n': 1}()))"


def test_a_changed_parameter_does_what_depends_on_it_again(tmp_path: Path) -> None:
    note = Recorder()

    def chain(n: int, m: int) -> Step:
        return note.step("c", note.step("b", note.step("a", n=n), m=m))

    chain(1, 1).ensure(tmp_path)
    chain(1, 2).ensure(tmp_path)
    chain(2, 2).ensure(tmp_path)
    assert note.ran == ["a", "b", "c", "b", "c", "a", "b", "c"]


def test_what_a_finished_step_was_made_from_may_be_gone(tmp_path: Path) -> None:
    note = Recorder()
    last = note.step("last", note.step("first"))
    last.ensure(tmp_path)
    (tmp_path / "first" / STAMP).unlink()
    last.ensure(tmp_path)
    assert note.ran == ["first", "last"]


def test_a_step_that_fails_leaves_nothing_that_looks_done(tmp_path: Path) -> None:
    def refuse(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise UserError("no")

    def crash(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("bug")

    with pytest.raises(UserError):
        Step("it", refuse).ensure(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError):
        Step("it", crash).ensure(tmp_path)
    note = Recorder()
    step = note.step("it")
    assert not step.is_done(tmp_path)
    step.ensure(tmp_path)
    assert note.ran == ["it"]
    assert sorted(path.name for path in (tmp_path / "it").iterdir()) == [STAMP, "made"]
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_a_folder_without_its_stamp_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "it/alien").write_text("")
    Recorder().step("it").ensure(tmp_path)
    assert not (tmp_path / "it/alien").exists()


def test_files_are_shared_or_else_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("text")
    share(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").samefile(tmp_path / "b")

    def refuse(self: Path, target: Path) -> None:
        raise PermissionError("no second names here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    share(tmp_path / "a", tmp_path / "c")
    assert (tmp_path / "c").read_text() == "text" and not (tmp_path / "a").samefile(tmp_path / "c")


def test_a_full_disk_is_named_and_not_kept_full(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "much").write_bytes(bytes(1000))
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        Step("words", fill).ensure(tmp_path)
    assert str(explain(caught.value)) == f"{tmp_path}/words.partial: No space left on device"
    assert list(tmp_path.iterdir()) == []

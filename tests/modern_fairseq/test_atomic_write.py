"""Files are written whole or not at all, whatever happens to who writes them."""

import errno
import functools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from fairseq_residuals.plugin.folders import locked
from fairseq_residuals_errors import UserError
from modern_fairseq import atomic_write as module
from modern_fairseq.atomic_write import SUFFIX, atomic_write, remove_abandoned

HALF_WRITTEN = """
import sys, time
from modern_fairseq.atomic_write import atomic_write
with atomic_write(sys.argv[1]) as temporary, atomic_write(sys.argv[1] + ".second"):
    temporary.write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    return path


@pytest.fixture
def writer(target):
    """A process that has written half of the target; SIGINT reaches it also where the tests run in the background."""
    command = [sys.executable, "-c", HALF_WRITTEN, str(target)]
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=heed) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def test_the_file_changes_when_all_is_written(target):
    with atomic_write(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new" and os.listdir(target.parent) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_alone(error, target):
    def write_half():
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert target.read_text() == "old" and os.listdir(target.parent) == ["file"]


def test_an_error_names_the_file_and_no_second_one(tmp_path):
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as caught, atomic_write(path):
        pass
    assert str(caught.value) == f"[Errno 2] No such file or directory: {str(path)!r}"


def test_a_pipe_stays_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="a device or a pipe, and no file"), atomic_write(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_an_interruption_removes_the_temporary_files(writer, target):
    writer.send_signal(signal.SIGINT)
    assert writer.wait(120) == -signal.SIGINT
    assert target.read_text() == "old" and os.listdir(target.parent) == ["file"]


def test_what_a_killed_process_leaves_is_overwritten(writer, target):
    writer.kill()
    writer.wait(120)
    assert len(os.listdir(target.parent)) == 3
    with atomic_write(target) as temporary:
        assert temporary.read_text() == ""
        temporary.write_text("new")
    with atomic_write(f"{target}.second"):
        pass
    assert target.read_text() == "new" and sorted(os.listdir(target.parent)) == ["file", "file.second"]


def test_what_a_killed_process_leaves_is_removed_and_what_is_in_use_is_not(writer, target):
    other = target.with_name(f"of somebody else{SUFFIX}")
    other.touch()
    remove_abandoned(target.parent)
    assert len(os.listdir(target.parent)) == 4
    writer.kill()
    writer.wait(120)
    remove_abandoned(target.parent)
    assert set(os.listdir(target.parent)) == {"file", other.name}


def test_writers_of_one_file_take_turns(target):
    def write(number):
        with atomic_write(target) as temporary, temporary.open("w") as file:
            for _ in range(100):
                file.write(f"{number}")
                time.sleep(1e-5)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = target.read_text()
    assert len(written) == 100 and len(set(written)) == 1 and os.listdir(target.parent) == ["file"]


def test_a_file_system_without_locks_will_do(target, monkeypatch):
    def flock(descriptor, flags):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(module.fcntl, "flock", flock)
    with atomic_write(target) as temporary:
        remove_abandoned(target.parent)
        temporary.write_text("new")
    assert target.read_text() == "new"


def test_the_target_of_a_link_is_written(target):
    link = target.with_name("link")
    link.symlink_to(target)
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink() and target.read_text() == "new"


def test_the_file_and_then_its_name_reach_the_disk(target, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    with atomic_write(target) as temporary:
        temporary.write_text("new")
    assert synced == [str(temporary), str(target.parent)]


def test_errors_name_what_was_to_be_written(tmp_path):
    with pytest.raises(OSError, match="No space") as caught, atomic_write(tmp_path / "file"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(tmp_path / "file")


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(target):
    (theirs := target.with_name("theirs")).write_text("kept")
    link = target.with_name(f".file{SUFFIX}")
    link.symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic links") as caught, atomic_write(target) as temporary:
        temporary.write_text("new")
    assert caught.value.filename == str(target)
    remove_abandoned(target.parent)
    assert theirs.read_text() == "kept" and target.read_text() == "old" and link.is_symlink()


def test_links_under_the_names_of_locks_and_of_abandoned_files_are_not_followed(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("kept")
    links = [tmp_path / ".lock", tmp_path / f".NAME{SUFFIX}"]
    for link in links:
        link.symlink_to(theirs)
    with pytest.raises(UserError, match="nothing can be written in"), locked(tmp_path):
        pass
    remove_abandoned(tmp_path)
    assert theirs.read_text() == "kept" and all(link.is_symlink() for link in links)

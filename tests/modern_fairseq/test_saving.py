"""A disk that is full, for a moment or for good, costs no checkpoint."""

import errno
import logging
import os
import pathlib
import pickle
import shutil

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_residuals_errors import UserError
from modern_fairseq.fixes import saving

OLD, NEW = {"model": torch.zeros(3)}, {"model": torch.arange(100_000.0)}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(saving, "WAITS", (0.0, 0.0))


class FullDisk:
    """Files opened for writing refuse what comes after their first few bytes, the first ``times`` of them."""

    def __init__(self, times, error=errno.ENOSPC):
        self.times, self.error = times, error

    def open(self, path, mode="r", *args, **kwargs):
        file = open(path, mode, *args, **kwargs)  # noqa: SIM115
        if "w" in mode and self.times > 0:
            self.times -= 1
            return RefusingFile(file, self.error)
        return file


class RefusingFile:
    def __init__(self, file, error, room=1000):
        self.file, self.error, self.room = file, error, room

    def write(self, data):
        if self.file.tell() + len(memoryview(data).cast("B")) > self.room:
            raise OSError(self.error, os.strerror(self.error))
        return self.file.write(data)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.fixture
def full(monkeypatch):
    """``full(times)``: whoever opens a file, fairseq or pathlib, finds a full disk so often."""

    def make(times, **more):
        disk = FullDisk(times, **more)
        monkeypatch.setattr(checkpoint_utils.PathManager, "open", disk.open)
        monkeypatch.setattr(pathlib.Path, "open", lambda self, *args: disk.open(self, *args))

    return make


def load(path):
    return torch.load(path)["model"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_disk_that_is_full_for_a_moment(times, full, tmp_path, caplog):
    path = str(tmp_path / "checkpoint_last.pt")
    checkpoint_utils.torch_persistent_save(OLD, path)
    full(times)
    with caplog.at_level(logging.WARNING):
        checkpoint_utils.torch_persistent_save(NEW, path)
    assert torch.equal(load(path), NEW["model"])
    assert caplog.text.count("No space left on device; trying again") == times
    assert os.listdir(tmp_path) == ["checkpoint_last.pt"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_stays_full(error, full, tmp_path):
    path = str(tmp_path / "checkpoint_last.pt")
    checkpoint_utils.torch_persistent_save(OLD, path)
    full(99, error=error)
    with pytest.raises(UserError, match=f"checkpoint_last.pt cannot be written to {tmp_path}: {os.strerror(error)}"):
        checkpoint_utils.torch_persistent_save(NEW, path)
    assert torch.equal(load(path), OLD["model"])
    assert os.listdir(tmp_path) == ["checkpoint_last.pt"]


def test_what_cannot_be_saved_is_no_matter_of_the_disk(tmp_path):
    # the latter on Python 3.14
    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        checkpoint_utils.torch_persistent_save({"model": lambda: None}, str(tmp_path / "a.pt"))
    assert os.listdir(tmp_path) == []


def refuse(times, monkeypatch):
    """The first copies break off in the middle of the file."""
    copy, left = shutil.copyfile, [None] * times

    def copyfile(source, target):
        copy(source, target)
        if left:
            left.pop()
            os.truncate(target, 100)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))

    monkeypatch.setattr(shutil, "copyfile", copyfile)


def test_a_copy_alike(tmp_path, monkeypatch):
    new, last = str(tmp_path / "checkpoint1.pt"), str(tmp_path / "checkpoint_last.pt")
    checkpoint_utils.torch_persistent_save(NEW, new)
    checkpoint_utils.torch_persistent_save(OLD, last)
    refuse(3, monkeypatch)
    with pytest.raises(UserError, match=f"checkpoint_last.pt cannot be written to {tmp_path}: No space left"):
        checkpoint_utils.PathManager.copy(new, last, overwrite=True)
    assert torch.equal(load(last), OLD["model"])
    refuse(2, monkeypatch)
    checkpoint_utils.PathManager.copy(new, last, overwrite=True)
    assert torch.equal(load(last), NEW["model"])
    assert sorted(os.listdir(tmp_path)) == ["checkpoint1.pt", "checkpoint_last.pt"]


def test_a_run_begins_by_removing_what_a_killed_one_left(tmp_path):
    for name in (".checkpoint_1_5.pt.atomic-write", ".checkpoint_1_5.pt.other", "checkpoint1.pt"):
        (tmp_path / name).write_bytes(b"half")
    checkpoint_utils.verify_checkpoint_directory(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == [".checkpoint_1_5.pt.other", "checkpoint1.pt"]

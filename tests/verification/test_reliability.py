"""The campaign of kills, failing disks and damage: a short one, and that it would notice what it looks for."""

from __future__ import annotations

import errno
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.experiments import forks
from fairseq_residuals.verification.reliability import __main__ as campaign
from fairseq_residuals.verification.reliability import disks, operations, trials, zygote
from fairseq_residuals.verification.reliability.campaign_commands import OUT, Base, Command
from fairseq_residuals.verification.reliability.operations import Counter
from fairseq_residuals.verification.reliability.records import Records
from fairseq_residuals.verification.reliability.trials import REFUSED, SAME, Defect, Outcome, Planned, Reference, Trial
from modern_fairseq.atomic_write import atomic_write

CONTENT = b"0123456789" * 10_000


def in_place(path: Path) -> None:
    """Write a file as nobody should."""
    if not path.exists():
        with path.open("wb") as file:
            file.write(CONTENT)


def atomically(path: Path) -> None:
    if not path.exists():
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            file.write(CONTENT)


def with_a_sentence(path: Path) -> None:
    try:
        atomically(path)
    except OSError as error:
        print(f"writer: error: {error}", file=sys.stderr)
        sys.exit(1)


@pytest.fixture
def trial_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None]], Trial]:
    """A trial of a command that writes one file in the given way."""
    # pytest's own children are not the campaign's
    monkeypatch.setattr(zygote, "wait_for_orphans", lambda: None)
    monkeypatch.setattr(zygote, "kill_descendants", lambda: None)

    def make(write: Callable[[Path], None]) -> Trial:
        monkeypatch.setattr(forks, "program", lambda name: lambda: write(Path(sys.argv[1])))
        command = Command(
            "writer",
            lambda base, folder: ["writer", str(folder / OUT / "file")],
            lambda out: {"file": (out / "file").read_text()},
        )
        reference = trials.refer(command, Base(tmp_path), tmp_path / "reference")
        return Trial(command, Base(tmp_path), tmp_path / "trial", reference)

    return make


def outcomes(trial: Trial, kind: trials.Kind, number: int = 12) -> set[str]:
    found = set()
    for seed in range(number):
        again = Trial(trial.command, trial.base, trial.folder, trial.reference)
        try:
            found.add(kind(again, random.Random(seed)).result)
        except Defect as defect:
            found.add(str(defect).split(":")[0])
    return found


def test_a_command_that_writes_in_place_is_caught(trial_of: Callable[..., Trial]) -> None:
    assert "the same command again ended with another result" in outcomes(trial_of(in_place), trials.kill)
    assert outcomes(trial_of(atomically), trials.kill) == {SAME}


def test_a_disk_that_fails_has_to_end_in_a_sentence(trial_of: Callable[..., Trial]) -> None:
    assert "it ended with status 1 and no sentence" in outcomes(trial_of(atomically), trials.failing_disk)
    assert outcomes(trial_of(with_a_sentence), trials.failing_disk) == {SAME}


def test_small_and_read_only_disks(trial_of: Callable[..., Trial], tmp_path: Path) -> None:
    if reason := disks.reason_against(tmp_path):
        pytest.skip(f"this system lets this user mount no disk: {reason}")
    trial = trial_of(with_a_sentence)
    assert outcomes(trial, trials.full_disk, 4) == {SAME}
    assert outcomes(trial, trials.read_only_disk, 1) == {SAME}
    assert "it ended with status 1 and no sentence" in outcomes(trial_of(atomically), trials.read_only_disk, 1)


def test_every_operation_on_the_folder_is_counted_and_may_fail(tmp_path: Path) -> None:
    """atomic_write opens, empties, is written, synced, and renamed; the folder is synced by a read-only descriptor."""

    def work(act: operations.Act) -> tuple[int, str]:
        counter = Counter()
        operations.watch(tmp_path, counter, act)
        try:
            atomically(tmp_path / "file")
        except OSError as error:
            return counter.value, errno.errorcode[error.errno or 0]
        return counter.value, "done"

    count, said = disks.in_child(lambda: work(operations.nothing))
    assert said == "done" and (tmp_path / "file").read_bytes() == CONTENT
    (tmp_path / "file").unlink()
    for number in range(1, count + 1):
        _, said = disks.in_child(lambda number=number: work(operations.fail_at(number, errno.EIO, for_good=False)))
        assert said == "EIO" and not (tmp_path / "file").exists()
    assert disks.in_child(lambda: work(operations.nothing)) == (count, "done")
    assert os.listdir(tmp_path) == ["file"]


def test_outcomes_are_gone_on_with_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, planned = tmp_path / "records.json", [Planned("killed", "train", number) for number in range(4)]
    records = Records.read(path, seed=1)
    for trial, outcome in zip(planned, (SAME, REFUSED, "it is broken"), strict=False):
        records.add(trial, Outcome(outcome, kills=2))
    again = Records.read(path, seed=1)
    assert list(again.defects()) == ["killed: train 2: it is broken"]
    assert re.search(r"killed +\| train +\| +6 \| +3 \| +1 \| +1 \| +1 \|", again.table(planned))
    with pytest.raises(UserError, match="another --seed"):
        Records.read(path, seed=2)
    monkeypatch.setattr("fairseq_residuals.verification.reliability.records.digest_of_code", lambda: "other")
    with pytest.raises(UserError, match="of other code"):
        Records.read(path, seed=1)


SHORT = {"killed": 4, "full-disk": 1, "read-only-disk": 0, "failing-disk": 2, "truncated": 1, "flipped": 2}


def test_a_short_campaign(tmp_path: Path) -> None:
    """In a process of its own, which forks."""
    counts = [word for kind, number in SHORT.items() for word in (f"--{kind}", str(number))]
    argv = ["--work", str(tmp_path), "--commands", "train", "average", *counts]
    command = [sys.executable, "-m", "fairseq_residuals.verification.reliability", *argv]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    [total] = re.findall(r"^\| all +\|.*$", ended.stdout, re.M)
    kills, made, same, refused, defects = (int(number) for number in re.findall(r"\d+", total))
    without_disks = 1 if "no disk can be mounted" in ended.stderr else 0
    assert (made, same + refused, defects) == (sum(SHORT.values()) - without_disks, made, 0)
    assert kills > 0 and refused > 0


def test_usage_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "records.json").write_text("no json")
    assert campaign.main(["--work", str(tmp_path)]) == 1
    assert "reliability: error: " in capsys.readouterr().err


def test_a_reference_must_not_differ_from_itself(trial_of: Callable[..., Trial]) -> None:
    def write(path: Path) -> None:
        path.write_text(str(os.getpid()))

    with pytest.raises(Defect, match="gave another result the second time"):
        trial_of(write)


def test_a_reference_counts_operations(trial_of: Callable[..., Trial]) -> None:
    """Of atomic_write a file is created, emptied, opened by the writer, written at once, synced and renamed."""
    reference = trial_of(atomically).reference
    assert isinstance(reference, Reference) and reference.operations == 6

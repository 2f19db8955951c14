"""Trials: a command is killed, its disk fails, or its checkpoint is damaged; then the same command again."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairseq_residuals.verification.reliability import disks, operations, zygote
from fairseq_residuals.verification.reliability.campaign_commands import COMMANDS, OUT, Base, Command, Result
from fairseq_residuals.verification.reliability.operations import Act, Counter
from fairseq_residuals.verification.reliability.zygote import Ended

SAME, REFUSED = "same", "refused"
MOST_KILLS = 5
LARGE = 64 << 20
"""Bytes of a disk that is never full."""
SIZES = {"train": 512 << 10, "prepare": 128 << 10, "reproduce": 768 << 10}
"""Bytes of disks on which these commands may not end; the others write a single file of less than 128 KiB."""


class Defect(Exception):
    """A promise that was broken; the message says which, and what the command said."""


class Outcome(NamedTuple):
    """What came of a trial."""

    result: str
    """SAME, REFUSED, or what was wrong."""
    kills: int = 0
    """How often the command was killed; it may have ended before."""


class Reference(NamedTuple):
    """A command that nothing hindered."""

    result: Result
    seconds: float
    operations: int


@dataclass
class Trial:
    """One command in a folder of its own."""

    command: Command
    base: Base
    folder: Path
    reference: Reference | None = None

    def __post_init__(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / OUT).mkdir(parents=True)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def begin(self, act: Act = operations.nothing, counter: Counter | None = None) -> int:
        """Start the command, which is told of each of its operations."""
        counter = counter or Counter()

        def before() -> None:
            operations.watch(self.folder / OUT, counter, act)

        return zygote.start(self.command.argv(self.base, self.folder), self.log, before)

    def run(self, before: Callable[[], None] = lambda: None) -> Ended:
        """Run the command to its end."""
        return zygote.run(self.command.argv(self.base, self.folder), self.log, before)

    def result(self) -> Result:
        """Return what the command has left.

        Raises:
            Defect: it cannot be read.
        """
        try:
            return self.command.result(self.folder / OUT)
        except Exception as error:
            raise Defect(f"what was written cannot be read: {error}") from error

    def check_again(self) -> None:
        """Run the same command once more, with nothing in its way, and compare what it leaves.

        Raises:
            Defect: it did not end with the reference's result and nothing beside it.
        """
        assert self.reference is not None
        ended = self.run()
        if ended.status != 0:
            raise Defect(f"the same command again ended with status {ended.status}:\n{ended.output[-3000:]}")
        if (result := self.result()) != self.reference.result:
            names = sorted(set(result.items()) ^ set(self.reference.result.items()))
            raise Defect(f"the same command again ended with another result: {sorted({name for name, _ in names})}")
        if leftovers := self.command.leftovers(self.folder):
            raise Defect(f"the same command again left {', '.join(leftovers)}")


def refer(command: Command, base: Base, folder: Path) -> Reference:
    """Run a command without hindrance, twice: once timed, once counted.

    Raises:
        Defect: it failed, or the two runs differ.
    """
    timed = Trial(command, base, folder)
    ended = timed.run()
    if ended.status != 0:
        raise Defect(f"{command.name} failed with nothing in its way:\n{ended.output[-3000:]}")
    reference = Reference(timed.result(), ended.seconds, 0)
    counted, counter = Trial(command, base, folder), Counter()
    zygote.wait(counted.begin(counter=counter), counted.log)
    if counted.result() != reference.result:
        raise Defect(f"{command.name} gave another result the second time, with nothing in its way")
    return Reference(reference.result, reference.seconds, counter.value)


def _refused_or_done(ended: Ended) -> None:
    """Check that a command has done its work, or refused with a sentence.

    Raises:
        Defect: it has failed otherwise.
    """
    if ended.status != 0 and not ended.refusal:
        raise Defect(f"it ended with status {ended.status} and no sentence:\n{ended.output[-3000:]}")


def kill(trial: Trial, draw: random.Random) -> Outcome:
    """Kill a command up to five times, each at a random moment or before a random operation, and let it go on.

    What the killed command had started is killed with it, or runs on until it ends.
    """
    assert trial.reference is not None
    kills = 0
    for _ in range(draw.randint(1, MOST_KILLS)):
        at_operation = draw.random() < 0.5
        number = draw.randint(1, trial.reference.operations) if at_operation else 0
        seconds = None if at_operation else draw.uniform(0, trial.reference.seconds)
        started = trial.begin(operations.kill_at(number) if number else operations.nothing)
        kills += zygote.wait(started, trial.log, seconds).killed
        if draw.random() < 0.5:
            zygote.kill_descendants()
        zygote.wait_for_orphans()
    trial.check_again()
    return Outcome(SAME, kills)


def full_disk(trial: Trial, draw: random.Random) -> Outcome:
    """Let the disk be full at some point; then it gets larger."""
    return _on_disk(trial, draw.randint(4 << 10, SIZES.get(trial.command.name, 128 << 10)), read_only=False)


def read_only_disk(trial: Trial, draw: random.Random) -> Outcome:
    """Begin on a disk that cannot be written, with what a killed command has left; then it can be."""
    return _on_disk(trial, LARGE, read_only=True)


def _on_disk(trial: Trial, size: int, read_only: bool) -> Outcome:
    def work() -> str:
        zygote.adopt_orphans()
        disk = trial.folder / OUT
        disks.mount(disk, size)
        if read_only:
            disks.remount(disk, size, read_only=True)
        ended = trial.run()
        zygote.wait_for_orphans()
        disks.remount(disk, LARGE)
        try:
            _refused_or_done(ended)
            if read_only and ended.status == 0:
                raise Defect("it ended with status 0 on a disk that cannot be written")
            trial.check_again()
        except Defect as defect:
            return str(defect)
        return ""

    if defect := disks.in_child(work):
        raise Defect(defect)
    return Outcome(SAME)


def failing_disk(trial: Trial, draw: random.Random) -> Outcome:
    """Fail one operation, or all from one on; then none."""
    assert trial.reference is not None
    number, error = draw.randint(1, trial.reference.operations), draw.choice((errno.EIO, errno.ENOSPC))
    act = operations.fail_at(number, error, for_good=draw.random() < 0.5)
    _refused_or_done(zygote.wait(trial.begin(act), trial.log))
    zygote.wait_for_orphans()
    trial.check_again()
    return Outcome(SAME)


def _damaged(trial: Trial, damage: Callable[[bytes], bytes]) -> Outcome:
    """Let the command go on from its newest checkpoint, which is damaged.

    The run that went before is the base's; its last updates are made again.
    """
    assert trial.reference is not None
    out = trial.folder / OUT
    middle = min(trial.base.run.glob("checkpoint_*_*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
    last = out / "checkpoint_last.pt"
    last.write_bytes(damage(middle.read_bytes()))
    before = last.read_bytes()
    ended = trial.run()
    _refused_or_done(ended)
    if ended.status != 0:
        if last.read_bytes() != before or sorted(out.iterdir()) != [last]:
            raise Defect(f"it wrote something before it refused: {ended.refusal}")
        return Outcome(REFUSED)
    if trial.result()[last.name] != trial.reference.result[last.name]:
        raise Defect("it took the damaged checkpoint, and ended with another result")
    return Outcome(SAME)


def truncated(trial: Trial, draw: random.Random) -> Outcome:
    """Cut the newest checkpoint anywhere."""
    part = draw.random()
    return _damaged(trial, lambda whole: whole[: int(part * len(whole))])


def flipped(trial: Trial, draw: random.Random) -> Outcome:
    """Flip any bit of the newest checkpoint."""
    part, bit = draw.random(), draw.randrange(8)

    def flip(whole: bytes) -> bytes:
        at = int(part * len(whole))
        return whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]

    return _damaged(trial, flip)


Kind = Callable[[Trial, random.Random], Outcome]
"""Raises Defect where a promise was broken."""

KINDS: Mapping[str, Kind] = {
    "killed": kill,
    "full disk": full_disk,
    "read-only disk": read_only_disk,
    "failing disk": failing_disk,
    "truncated": truncated,
    "flipped": flipped,
}
DAMAGE, DISKS = ("truncated", "flipped"), ("full disk", "read-only disk")


@dataclass(frozen=True)
class Planned:
    """A trial by its name: the same name, with the same seed, is the same trial."""

    kind: str
    command: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}: {self.command} {self.number}"


def plan(counts: Mapping[str, int], commands: Sequence[str]) -> Iterator[Planned]:
    """Yield as many trials of each kind as are asked for, of the commands in turn; every other kill is of training."""
    others = [name for name in commands if name != "train"]
    for kind, count in counts.items():
        turns = commands
        if kind in DAMAGE:
            turns = [name for name in commands if COMMANDS[name].resumes]
        elif kind == "killed" and others and "train" in commands:
            turns = [name for other in others for name in ("train", other)]
        made: dict[str, int] = {}
        for number in range(count if turns else 0):
            command = turns[number % len(turns)]
            made[command] = made.get(command, 0) + 1
            yield Planned(kind, command, made[command])

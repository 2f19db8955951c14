"""``python -m fairseq_residuals.verification.reliability``: kill, starve and damage what writes files."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.utils.documents import read_json
from fairseq_residuals.utils.folders import locked
from fairseq_residuals.utils.progress import say
from fairseq_residuals.verification.reliability import disks, zygote
from fairseq_residuals.verification.reliability.campaign_commands import COMMANDS, Base, Command, make_base
from fairseq_residuals.verification.reliability.records import Records
from fairseq_residuals.verification.reliability.trials import (
    DISKS,
    KINDS,
    Defect,
    Outcome,
    Planned,
    Reference,
    Trial,
    plan,
    refer,
)
from modern_fairseq.atomic_write import atomic_write

FULL = {
    "killed": 80,
    "full disk": 36,
    "read-only disk": 6,
    "failing disk": 72,
    "truncated": 64,
    "flipped": 256,
}
"""Trials of each kind, by default."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="reliability", description=__doc__.partition(": ")[2])
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for trials, and to go on from")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of what is drawn; default: 1")
    parser.add_argument("--minutes", type=float, metavar="N", help="stop after so many; the same command goes on")
    parser.add_argument("--commands", nargs="+", choices=tuple(COMMANDS), default=tuple(COMMANDS), help="default: all")
    counts = parser.add_argument_group("trials of each kind")
    for kind, count in FULL.items():
        counts.add_argument(
            f"--{kind.replace(' ', '-')}", type=int, default=count, metavar="N", help=f"default: {count}"
        )
    return parser


class Campaign:
    """The trials of one folder."""

    def __init__(self, work: Path, seed: int) -> None:
        self.work, self.seed, self.base = work, seed, Base(work / "base")
        self.records = Records.read(work / "records.json", seed)

    def carry_out(self, planned: Sequence[Planned], until: float) -> None:
        """Make the trials that have not been made, until that time."""
        waiting = [trial for trial in planned if str(trial) not in self.records.outcomes]
        if not waiting:
            return
        zygote.prepare_to_fork()
        make_base(self.base)
        reason = disks.reason_against(self.base.folder) if any(trial.kind in DISKS for trial in waiting) else ""
        if reason:
            say(f"no disk can be mounted here ({reason}): trials on full and read-only disks are left out")
            waiting = [trial for trial in waiting if trial.kind not in DISKS]
        for number, trial in enumerate(waiting):
            if time.monotonic() > until:
                say(f"{len(waiting) - number} trials are left: the same command goes on")
                return
            outcome = self._try(trial)
            self.records.add(trial, outcome)
            say(f"{number + 1}/{len(waiting)} {trial}: {outcome.result.splitlines()[0]}")

    def _reference(self, command: Command) -> Reference:
        """Return that of a command; trials of one folder share it, whenever they are made."""
        path = self.work / f"reference.{command.name}.json"
        if not path.exists():
            reference = refer(command, self.base, self.work / "reference")
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(reference))
        return Reference(*read_json(path))

    def _try(self, planned: Planned) -> Outcome:
        command = COMMANDS[planned.command]
        trial = Trial(command, self.base, self.work / "trial", self._reference(command))
        try:
            return KINDS[planned.kind](trial, random.Random(f"{self.seed} {planned}"))
        except (Defect, TimeoutError) as defect:
            kept = self.work / "defects" / str(planned).replace(": ", "-").replace(" ", "-")
            shutil.rmtree(kept, ignore_errors=True)
            kept.parent.mkdir(exist_ok=True)
            trial.folder.rename(kept)
            return Outcome(f"{defect}\n(in {kept})")


def run(args: argparse.Namespace) -> int:
    """Carry out what is asked for; print the table; return 1 if a promise was broken.

    Raises:
        UserError: the folder holds trials of another seed or of other code, or is in use.
        Defect: a command failed, or is not repeatable, with nothing in its way.
    """
    counts = {kind: getattr(args, kind.replace(" ", "_").replace("-", "_")) for kind in KINDS}
    planned = list(plan(counts, args.commands))
    until = float("inf") if args.minutes is None else time.monotonic() + 60 * args.minutes
    work: Path = args.work.resolve()
    with locked(work):
        campaign = Campaign(work, args.seed)
        campaign.carry_out(planned, until)
    print(campaign.records.table(planned))
    broken = list(campaign.records.defects())
    print(*broken, sep="\n\n", file=sys.stderr)
    return 1 if broken else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign and return the exit status."""
    args = build_parser().parse_args(argv)
    try:
        return run(args)
    except (UserError, Defect) as error:
        print(f"reliability: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""A session on a device: does the pieces that time permits, and says what was done and what was not."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.experiments.device_session.agenda import Piece
from fairseq_residuals.experiments.runner import CommandFailed, Run, Runner
from fairseq_residuals.experiments.workspace import commit
from fairseq_residuals.utils.documents import read_json
from fairseq_residuals.utils.tables import Cell, markdown_table
from modern_fairseq.atomic_write import atomic_write

LONGEST = 9
"""Minutes of a piece: machines that are lent may take no longer command."""
OUT_OF_TIME = (124, 137)
"""Exit statuses of the program timeout."""
PASSED = "passed"


@dataclass(frozen=True)
class Outcome:
    """What became of a piece."""

    piece: str
    result: str
    minutes: float | None


class Session:
    """The results of one device and day, in a folder that further calls go on with."""

    def __init__(self, out: Path, machine: dict[str, str], pieces: Sequence[Piece]) -> None:
        self.out, self.machine, self.pieces = out, machine, pieces
        self.state = out / "session.json"
        saved = read_json(self.state) if self.state.exists() else []
        self.outcomes = {outcome["piece"]: Outcome(**outcome) for outcome in saved}

    def run(self, budget: float, again: bool = False) -> bool:
        """Do what is not done yet and fits into ``budget`` minutes, and return whether all that was done passed.

        Args:
            again: repeat what failed.
        """
        began, runner = time.monotonic(), Runner(echo=True)
        self.write_readme()
        for piece in self.pieces:
            outcome = self.outcomes.get(piece.name)
            if outcome and (outcome.result == PASSED or not again):
                continue
            if (time.monotonic() - began) / 60 + piece.minutes > budget:
                runner.say(f"{piece.name}: left out, no {piece.minutes:g} minutes are left")
                continue
            runner.run_all([Run(piece.name, lambda run, piece=piece: self._do(piece, runner))])  # type: ignore[misc]
        return all(outcome.result == PASSED for outcome in self.outcomes.values())

    def _do(self, piece: Piece, runner: Runner) -> None:
        began, result = time.monotonic(), PASSED
        try:
            limited = ["timeout", "-k", "10", str(60 * LONGEST), *piece.command]
            runner.command(limited, self.out / "logs" / f"{piece.name}.log")
        except CommandFailed as failure:
            if runner.stopping:  # the session was interrupted, and the next call does the piece
                raise
            stopped = any(f"status {status};" in str(failure) for status in OUT_OF_TIME)
            result = f"stopped after {LONGEST} minutes" if stopped else "failed, see its log"
            runner.say(failure.tail())
        self.outcomes[piece.name] = Outcome(piece.name, result, round((time.monotonic() - began) / 60, 2))
        with atomic_write(self.state) as partial:
            partial.write_text(json.dumps([asdict(o) for o in self.outcomes.values()], indent=1) + "\n")
        self.write_readme()
        runner.say(f"{piece.name}: {result}")

    def write_readme(self) -> None:
        """Write what was done on which device, and what was not."""
        rows: list[list[Cell]] = []
        for piece in self.pieces:
            outcome = self.outcomes.get(piece.name, Outcome(piece.name, "not done", None))
            rows.append([piece.name, piece.about, outcome.result, outcome.minutes])
        lines = [
            f"# {self.machine['device']}, {date.today().isoformat()}",
            "",
            f"`bash scripts/gpu.sh` at commit {commit()}; "
            + ", ".join(f"{key} {value}" for key, value in self.machine.items() if key != "device")
            + ".",
            "",
            markdown_table(["piece", "what it shows", "result", "minutes"], rows, left=3),
            "",
            "`logs/` has what each piece printed, after its command; the figures are in the files of the same names.",
        ]
        self.out.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.out / "README.md") as partial:
            partial.write_text("\n".join(lines) + "\n", encoding="utf-8")


def check_budget(minutes: float) -> None:
    """Check that there is time for anything.

    Raises:
        UserError: there is not.
    """
    if not minutes > 0:
        raise UserError(f"--budget is {minutes:g} and has to be more than 0 minutes")

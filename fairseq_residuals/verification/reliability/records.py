"""What came of the trials: a file that is gone on with, and a table of counts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import modern_fairseq
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.experiments.job import PLUGIN
from fairseq_residuals.utils.documents import read_record
from fairseq_residuals.utils.tables import Cell, markdown_table
from fairseq_residuals.verification.reliability.trials import REFUSED, SAME, Outcome, Planned
from modern_fairseq.atomic_write import atomic_write


def digest_of_code() -> str:
    """Return a digest of the code that is tried."""
    total = hashlib.sha256()
    for folder in (PLUGIN, Path(modern_fairseq.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            total.update(path.read_bytes())
    return total.hexdigest()


@dataclass
class Records:
    """The outcome of each trial that was made, by its name."""

    path: Path
    seed: int
    code: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, seed: int) -> Records:
        """Return those of a file; none where there is no such file.

        Raises:
            UserError: they are of another seed or of other code, or the file is damaged.
        """
        code = digest_of_code()
        if not path.exists():
            return cls(path, seed, code)
        record = read_record(path, "code", "seed", "outcomes")
        if (record["code"], record["seed"]) != (code, seed):
            raise UserError(f"{path} has trials of another --seed, or of other code: choose another --work")
        return cls(path, seed, code, {name: Outcome(*outcome) for name, outcome in record["outcomes"].items()})

    def add(self, trial: Planned, outcome: Outcome) -> None:
        """Record an outcome, on disk as well."""
        self.outcomes[str(trial)] = outcome
        content = {"code": self.code, "seed": self.seed, "outcomes": self.outcomes}
        with atomic_write(self.path) as temporary:
            temporary.write_text(json.dumps(content, indent=1))

    def defects(self) -> Iterator[str]:
        """Yield each broken promise, with the trial that broke it."""
        for name, outcome in self.outcomes.items():
            if outcome.result not in (SAME, REFUSED):
                yield f"{name}: {outcome.result}"

    def table(self, planned: Sequence[Planned]) -> str:
        """Return counts of the trials that were made, one row for each kind and command, in Markdown."""
        rows: dict[tuple[str, str], Counter[str]] = {}
        for trial in planned:
            if outcome := self.outcomes.get(str(trial)):
                counts = rows.setdefault((trial.kind, trial.command), Counter())
                counts[outcome.result if outcome.result in (SAME, REFUSED) else "defect"] += 1
                counts["kills"] += outcome.kills
        head = ["what", "command", "kills", "trials", "same result", "refused", "defects"]
        body: list[list[Cell]] = [[*key, *_counts(counts)] for key, counts in rows.items()]
        total: Counter[str] = sum(rows.values(), Counter())
        return markdown_table(head, [*body, ["all", "", *_counts(total)]], left=2)


def _counts(counts: Mapping[str, int]) -> list[int]:
    results = [counts.get(result, 0) for result in (SAME, REFUSED, "defect")]
    return [counts.get("kills", 0), sum(results), *results]

"""fairseq-score with current sacreBLEU."""

import functools
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import override


class Lines(Sequence):
    """The lines of an open text file, read when first asked for; also what fairseq-score does with a file itself."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    @functools.cached_property
    def lines(self) -> list[str]:
        lines = self.file.readlines()
        if not lines:
            raise UserError(f"{self.file.name} is empty: one sentence a line is needed")
        return lines

    def __getitem__(self, index: Any) -> Any:
        return self.lines[index]

    def __len__(self) -> int:
        return len(self.lines)

    def readlines(self) -> list[str]:
        return self.lines

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def sequences_for_sacrebleu(module: types.ModuleType) -> None:
    """Hand sacreBLEU sequences of lines, where fairseq hands it open files (fairseq_cli/score.py:58-61).

    sacreBLEU 2 refuses a file: "Each element of `refs` should be a sequence of strings".
    Can go when fairseq > 0.12.2 reads the lines itself.
    """
    vars(module)["open"] = _open
    override(module, "sys", stdin=Lines(sys.stdin))


def _open(path: str, mode: str = "r") -> Lines:
    return Lines(Path(path).open(mode, encoding="utf-8"))

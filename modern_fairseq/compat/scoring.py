"""fairseq-score with current sacreBLEU, and with texts that belong together."""

import os
import sys
import types
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import override, replaces


class Lines(list):
    """The lines of a text, and what else fairseq-score asks of an open file."""

    readlines = list.copy

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def lines_to_score(module: types.ModuleType) -> None:
    """Hand sacreBLEU the lines of two texts, as many of the one as of the other (fairseq_cli/score.py:58-93).

    fairseq hands it open files, which sacreBLEU 2 refuses ("Each element of `refs` should be a sequence of strings"),
    and leaves out what the longer one has more. Can go when fairseq > 0.12.2 reads the lines and counts them.
    """

    @replaces(module, "cli_main")
    def cli_main(original: Any) -> Any:
        args = module.get_parser().parse_args()
        if os.path.exists(args.ref) and (args.sys == "-" or os.path.exists(args.sys)):
            texts = {path: _read(path) for path in (args.ref, args.sys)}
            output, reference = len(texts[args.sys]), len(texts[args.ref])
            if output != reference:
                raise UserError(
                    f"{args.sys} has {output:,} lines and {args.ref} {reference:,}: the output and its reference must"
                    " have as many as each other"
                )
            override(module, "sys", stdin=texts[args.sys])
            module.open = lambda path, mode="r": texts[path]  # type: ignore[attr-defined]
        return original()


def _read(path: str) -> Lines:
    """Read a text once: a pipe has its lines no second time.

    Raises:
        UserError: it is empty.
    """
    with sys.stdin if path == "-" else open(path, encoding="utf-8") as file:
        lines = Lines(file)
    if not lines:
        raise UserError(f"{file.name} is empty: one sentence a line is needed")
    return lines

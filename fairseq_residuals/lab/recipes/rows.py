"""The rows of papers' tables as configurations: ``configs/<experiment>/rows.yaml``.

::

    table1/18l_t_fixup:
      base: b2t/shared/mt                      a file of configs/
      schedule: t_fixup                        of configs/schedule, where it is not that of the base
      model: {_name: transformer_t_fixup_wmt_en_de_18l}
      hardware: 128 P100, 13 hours (Table 7)
      known: the schedule is that of the T-Fixup paper [I]

Further keys are settings of fairseq-hydra-train. So a row is its base with overrides, and a command line of
fairseq-hydra-train without a file of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.plain_yaml import read_yaml

NOTES = ("hardware", "known")
"""What a row says to readers: on what the paper trained, and what is known, inferred or unknown of its settings."""


def rows_of(configs: Path) -> dict[str, dict[str, Any]]:
    """Return every row by its name, such as b2t/table1/18l_t_fixup."""
    return {
        f"{path.parent.name}/{name}": row
        for path in sorted(configs.glob("*/rows.yaml"))
        for name, row in _read(path).items()
    }


def as_command_line(configs: Path, name: str) -> tuple[str, list[str]]:
    """Return the ``--config-name`` and the overrides of a row; of what is a file, its name and none."""
    row = _read(configs / name.partition("/")[0] / "rows.yaml").get(name.partition("/")[2])
    if row is None:
        return name, []
    overrides = [f"schedule={row['schedule']}"] if "schedule" in row else []
    settings = {key: value for key, value in row.items() if key not in ("base", "schedule", *NOTES)}
    return row["base"], [*overrides, *(f"++{text}" for text in _overrides(settings))]


@cache
def _read(path: Path) -> dict[str, dict[str, Any]]:
    return read_yaml(path) if path.is_file() else {}


def _overrides(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _overrides(value, f"{prefix}{key}.")
        else:
            yield override(f"{prefix}{key}", value)


def override(key: str, value: str | int | bool | list[int]) -> str:
    """Return an override as hydra's grammar has it.

    Raises:
        UserError: the value is a path that hydra cannot be given.
    """
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, str) or re.fullmatch(r"[\w./:-]+", text):
        return f"{key}={text}"
    if "'" in text:
        raise UserError(f"{text}: hydra cannot be given a path with a quotation mark; choose another folder")
    return f"{key}='{text}'"

"""No command runs, computes or believes what is in a hostile file.

Each command is sent ``HOSTILE_SAMPLE`` files, drawn by chance, the same each time; 0: all, which takes more than
an hour.
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

import pytest
from command_lines import COMMANDS, Command
from hostile_files import cases
from limits import limit
from pickle_cases import Case
from running import Run, argv_of, execute
from tiny_input import prepare

SAMPLE = int(os.environ.get("HOSTILE_SAMPLE", "2"))
KEPT = r"^hydra/|^out/(\.lock$|downloads/(SHA256SUMS|\.lock)$|work/)"
"""What hydra and ``prepare`` keep of each run, whatever comes of it: logs, locks and steps that are whole."""


def drawn(reader: str, command: Command) -> list[Case]:
    """Return files that the command reads, other ones for each command."""
    files = [case for case in cases() if case.reader == reader]
    return sorted(files, key=lambda case: zlib.crc32(f"{case.name} {command.name}".encode()))[: SAMPLE or None]


def fault(case: Case, command: Command, ended: Run, left: list[str]) -> str:
    """Say what is wrong with how the command ended; empty if nothing is."""
    lines = [line for line in ended.err.splitlines() if re.match(r"[a-z-]+( [a-z-]+)?: error: ", line)]
    if ended.status <= 0:
        return f"status {ended.status}"
    if command.sentence and "Traceback" in ended.out + ended.err:
        return f"traceback: {ended.err.strip().splitlines()[-1][:300]}"
    if command.sentence and len(lines) != 1:
        return f"{len(lines)} sentences: {ended.err[-500:]}"
    if command.sentence and not re.search(command.sentence.format(case.sentence), lines[0]):
        return f"says {lines[0][:300]}"
    return f"left {', '.join(left)}" if left else ""


def files_in(folder: Path) -> set[str]:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not re.search(KEPT, name)}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "inputs"
    prepare(folder)
    return folder


@pytest.mark.parametrize(
    ("reader", "command"),
    [
        pytest.param(reader, command, id=f"{reader}-{command.name}")
        for reader, commands in COMMANDS.items()
        for command in commands
    ],
)
def test_each_command_refuses_what_it_is_given(reader: str, command: Command, inputs: Path, tmp_path: Path) -> None:
    faults = []
    for number, case in enumerate(drawn(reader, command)):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / f"file.{case.reader}"
        file.write_bytes(case.contents)
        argv = command.argv(file, inputs)
        before = files_in(folder)
        ended = execute(argv_of(*argv), cwd=folder, stdin=command.stdin, limit=limit)
        faults.append((case.name, fault(case, command, ended, sorted(files_in(folder) - before))))
    assert faults and [(name, wrong) for name, wrong in faults if wrong] == []

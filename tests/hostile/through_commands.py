"""Sends the hostile files through every command that reads such a file: ``python tests/hostile/through_commands.py``.

Prints a line for each command, and one for each file that was not refused as it should be. Status 1 where there is
one. ``--sample N`` sends N files through each command, drawn by chance, the same each time. ``--json`` prints a line of
JSON for each file and command instead.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import forked
from command_lines import COMMANDS, Command
from hostile_files import cases
from pickle_cases import Case
from tiny_input import prepare

KEPT = r"^hydra/|^out/(\.lock$|downloads/(SHA256SUMS|\.lock)$|work/)"
"""What hydra and ``prepare`` keep of each run, whatever comes of it: logs, locks and steps that are whole."""


def runs(sample: int = 0) -> Iterator[tuple[Case, Command]]:
    """Each file with each command that reads such a file, or ``sample`` files for each command, other ones for each."""
    all_cases = list(cases())
    for reader, commands in COMMANDS.items():
        files = [case for case in all_cases if case.reader == reader]
        for command in commands:
            for case in sorted(files, key=lambda case: _chance(case, command))[: sample or None]:
                yield case, command


def _chance(case: Case, command: Command) -> int:
    return zlib.crc32(f"{case.name} {command.name}".encode())


def fault(case: Case, command: Command, ended: forked.Ended, left: list[str]) -> str:
    """What is wrong with how the command ended; empty if nothing is."""
    lines = [line for line in ended.err.splitlines() if re.match(r"[a-z-]+( [a-z-]+)?: error: ", line)]
    if ended.status <= 0:
        return f"status {ended.status}"
    if command.sentence and "Traceback" in ended.out + ended.err:
        return f"traceback: {ended.err.strip().splitlines()[-1][:300]}"
    if command.sentence and len(lines) != 1:
        return f"{len(lines)} sentences: {ended.err[-500:]}"
    if command.sentence and not re.search(command.sentence.format(case.sentence), lines[0]):
        return f"says {lines[0][:300]}"
    if ended.seconds > forked.SECONDS:
        return f"{ended.seconds:.1f} s"
    if left:
        return f"left {', '.join(left)}"
    return ""


def through(case: Case, command: Command, inputs: Path, folder: Path) -> tuple[forked.Ended, list[str]]:
    """How the command ended, and which files it left in the folder that it ran in."""
    folder.mkdir(exist_ok=True)
    file = folder / f"file.{case.reader}"
    file.write_bytes(case.contents)
    argv = command.argv(file, inputs)
    before = _files(folder)
    ended = forked.run(lambda: forked.call(argv), folder, stdin=command.stdin)
    left = _files(folder) - before
    forked.empty(folder)
    return ended, sorted(left)


def _files(folder: Path) -> set[str]:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not re.search(KEPT, name)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="files for each command (all)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    forked.import_everything()
    refused: Counter[str] = Counter()
    slowest: Counter[str] = Counter()
    faults = []
    with tempfile.TemporaryDirectory() as temporary:
        inputs, folder = Path(temporary, "inputs"), Path(temporary, "folder")
        prepare(inputs)
        for case, command in runs(args.sample):
            ended, left = through(case, command, inputs, folder)
            wrong = fault(case, command, ended, left)
            if args.json:
                print(json.dumps([case.name, command.name, round(ended.seconds, 3), wrong]), flush=True)
            elif wrong:
                print(f"{case.name} through {command.name}: {wrong}", flush=True)
            refused[command.name] += not wrong
            slowest[command.name] = max(slowest[command.name], ended.seconds)
            faults += [wrong] if wrong else []
    if not args.json:
        for name, count in refused.items():
            print(f"{name:50} {count:4} refused, at most {slowest[name]:.2f} s")
        print(f"{sum(refused.values()):,} runs ended in a refusal, {len(faults)} did not")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())

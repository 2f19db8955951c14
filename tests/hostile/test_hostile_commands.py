"""No command runs, computes or believes what is in a hostile file. ``through_commands.py`` sends all files through all
commands; here are as many as take seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import COMMANDS
from hostile_files import cases

SCRIPT = Path(__file__).with_name("through_commands.py")


@pytest.fixture(scope="module")
def outcomes() -> list[tuple[str, str, float, str]]:
    command = [sys.executable, SCRIPT, "--sample", "2", "--json"]
    environment = os.environ | {"HOSTILE_SECONDS": "30"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode in (0, 1), ended.stderr[-2000:]
    return [tuple(json.loads(line)) for line in ended.stdout.splitlines()]


def test_each_command_refuses_what_it_is_given(outcomes: list[tuple[str, str, float, str]]) -> None:
    assert [outcome for outcome in outcomes if outcome[3]] == []


def test_the_sample_has_each_command_and_each_kind_of_file(outcomes: list[tuple[str, str, float, str]]) -> None:
    kinds = {case.name: case.reader for case in cases()}
    assert {(kinds[name], command) for name, command, _, _ in outcomes} == {
        (reader, command.name) for reader, commands in COMMANDS.items() for command in commands
    }

"""Inputs changed at random end in a result or a sentence. ``fuzz.py`` gives a hundred thousand; here are a few seconds
of them, the same each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("fuzz.py")


def test_no_input_ends_in_a_fault() -> None:
    command = [sys.executable, SCRIPT, "--inputs", "300", "--seed", "2"]
    environment = os.environ | {"HOSTILE_SECONDS": "30"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    assert "faults" in ended.stdout.splitlines()[-1]

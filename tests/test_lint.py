"""The project's own rules: style and typing, checked by the tools that the lock file pins, and the length of files."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = ("fairseq_residuals", "modern_fairseq", "results", "scripts", "tests")
MOST_LINES = 300
MOST_LINES_OF_A_VARIANT = 120


@pytest.mark.parametrize(
    "command",
    ["ruff check", "ruff format --check", "mypy fairseq_residuals modern_fairseq"],
)
def test_tool_finds_nothing(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_is_too_long() -> None:
    files = [*ROOT.glob("*.py"), *(file for folder in CODE for file in (ROOT / folder).rglob("*.py"))]
    lengths = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8").count("\n") for file in files}
    variants = {name for name in lengths if name.startswith("fairseq_residuals/variants/")}
    assert variants
    most = {name: MOST_LINES_OF_A_VARIANT if name in variants else MOST_LINES for name in lengths}
    assert {name: length for name, length in lengths.items() if length > most[name]} == {}

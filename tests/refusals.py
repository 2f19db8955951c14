"""What ``fairseq-residuals`` says to a mistake."""

from __future__ import annotations

import pytest

from fairseq_residuals.__main__ import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 1) -> str:
    """Run a command that has to be refused, with nothing but one sentence; return that."""
    capsys.readouterr()
    assert main(list(map(str, arguments))) == status
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1, printed
    assert printed.err.startswith(f"fairseq-residuals {arguments[0]}: error: ")
    return printed.err

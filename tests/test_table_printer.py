"""Tables for readers."""

from __future__ import annotations

from fairseq_residuals.lab.utils.tables import markdown_table


def test_markdown() -> None:
    """Columns of one width, numbers to the right, a bar in a cell is not the end of it."""
    assert markdown_table(("name", "n", "of"), [("a|b", 1234, None), ("longer", 0.12345, "x")]).splitlines() == [
        "| name   |      n |  of |",
        "| ------ | -----: | --: |",
        r"| a\|b   |  1,234 |   - |",
        "| longer | 0.1235 |   x |",
    ]
    assert markdown_table(("a", "b"), [], left=2) == "| a   | b   |\n| --- | --- |"

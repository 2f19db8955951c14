"""Files of a user that are not text, not whole or of another shape: one sentence that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refusal

from fairseq_residuals.lab.compare.cells import read_results
from fairseq_residuals.lab.recipes.tables import load_published, read_records
from fairseq_residuals.plugin.documents import read_record
from fairseq_residuals.wirings.core.errors import UserError

CONTENTS = {
    "latin-1": "größe\n".encode("latin-1"),
    "nothing": b"",
    "NUL": b"a\0b\n",
    "binary": bytes(range(256)),
    "a list": b"[1]\n",
    "a number": b"3\n",
    "half an object": b'{"lines": ',
}
READERS = {
    "results in CSV": read_records,
    "outcomes in CSV": read_results,
    "published tables in YAML": load_published,
    "a record in JSON": lambda path: read_record(path, "lines"),
}
VALID_EMPTY = ("results in CSV",)
"""Read without anything in them, as before the first record."""


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("reader", READERS)
def test_files_that_cannot_be_read(reader: str, content: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(CONTENTS[content])
    if content == "nothing" and reader in VALID_EMPTY:
        assert READERS[reader](file) == []
        return
    with pytest.raises(UserError, match=str(file)):
        READERS[reader](file)


@pytest.mark.parametrize("content", [*CONTENTS.values(), b'{"lines": [3]}', b'{"corpus": 3}'])
def test_descriptions_of_what_was_prepared(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prepared.json").write_bytes(content)
    assert str(tmp_path / "prepared.json") in refusal(capsys, "prepare", "iwslt14_de_en", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"prepared.json", ".lock"}

"""JSON and text files: read into plain values, or refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import parse_json


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is no JSON.
        OSError: it cannot be read.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None


def read_record(path: Path, *keys: str) -> dict[str, Any]:
    """Read a JSON file that holds one object with at least these keys.

    Raises:
        UserError: the file is no JSON, no object, or lacks a key.
        OSError: it cannot be read.
    """
    content = read_json(path)
    missing = [key for key in keys if key not in content] if isinstance(content, dict) else keys
    if not isinstance(content, dict) or missing:
        lacks = f" with {', '.join(missing)}" if missing else ""
        raise UserError(f"{path} is damaged: it is no JSON object{lacks}; remove it")
    return content


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        UserError: the file is not UTF-8.
        OSError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None

"""Digests of files, as ``sha256:`` (or another algorithm) and hexadecimal digits."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """Return the hexadecimal digits of a file's digest.

    Args:
        algorithm: a name that :mod:`hashlib` knows.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def differs_from(stated: str, path: Path) -> str:
    """Return how a file's digest differs from the one that is stated, in words that follow its name; "" if not.

    Args:
        stated: an algorithm, a colon, and hexadecimal digits.
    """
    algorithm, _, right = stated.partition(":")
    found = digest_of(path, algorithm)
    return "" if found == right else f"has the {algorithm} {found} and should have {right}"

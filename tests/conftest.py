"""What all tests share."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Take all that stays, imports and tests, out of what the garbage collector goes through again and again."""
    gc.collect()
    gc.freeze()

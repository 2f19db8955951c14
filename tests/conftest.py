"""What all tests share."""

from __future__ import annotations

import gc

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the recipes first: one of two processes begins there, and what it composes serves all their tests."""
    items.sort(key=lambda item: item.path.parent.name != "recipes")


def pytest_collection_finish() -> None:
    """Take all that stays, imports and tests, out of what the garbage collector goes through again and again."""
    gc.collect()
    gc.freeze()

"""What all tests share."""

from __future__ import annotations

import gc
import logging

import absl.logging
import pytest


def pytest_configure() -> None:
    """Keep absl, which rouge-score imports, from closing a stream of pytest.

    Its handler closes the standard error that it was made with, unless ``sys`` still has it. A training that sets up
    logging closes all handlers, and while a test captures its output ``sys`` has another one: every later test failed.
    """
    absl.logging.PythonHandler.close = logging.StreamHandler.close


def pytest_runtest_setup() -> None:
    """Let no log go to a stream of an earlier test, which is closed.

    fairseq's commands log to what is the standard output when they are imported. In the first test that imports one,
    this may be its own: every later test would see a "Logging error" on the standard error.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "closed", False):
            root.removeHandler(handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with style and types: mypy takes most of a minute, and at the end nothing is left to do beside it."""
    items.sort(key=lambda item: item.path.name != "test_lint.py")


def pytest_collection_finish() -> None:
    """Take all that stays, imports and tests, out of what the garbage collector goes through again and again."""
    gc.collect()
    gc.freeze()

"""What all tests share."""

from __future__ import annotations

import gc
import logging
import os

import absl.logging
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork hangs where PyTorch has used several threads


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


FIRST = ("test_lint.py", "recipes")
"""Files and folders to begin with. A worker that has no tests left takes half of those that the other one has left.

mypy is one long test: at the end, nothing would be left to do beside it. Tests of recipes share what is read once for
all: where two workers had some of them, both would read it.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with :data:`FIRST`, in its order."""
    items.sort(key=lambda item: [name not in item.path.parts for name in FIRST])


def pytest_collection_finish() -> None:
    """Take all that stays, imports and tests, out of what the garbage collector goes through again and again.

    It looks seldom for the rest: a deep model or a graph is made of so many objects that, by default, it would look
    several times while one is built. Commands that tests start as forks inherit this.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)

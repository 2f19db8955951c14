"""What the tests of compare share."""

from __future__ import annotations

import pytest

from fairseq_residuals.lab.compare import checks, command
from fairseq_residuals.wirings.core import norms, registry


@pytest.fixture(autouse=True)
def _passes_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what an entry costs from one round, in calls within this process: no test is about it."""
    for module, rounds in ((checks, "FEW_ROUNDS"), (command, "FEW_ROUNDS"), (command, "ROUNDS")):
        monkeypatch.setattr(module, rounds, 1)


@pytest.fixture(autouse=True)
def _registry_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget wirings and norms of files after each test."""
    assert registry.VARIANTS
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    monkeypatch.setattr(norms, "_FACTORIES", dict(norms._FACTORIES))

"""What the tests of compare share."""

from __future__ import annotations

import pytest

from fairseq_residuals.wirings.core.registry import VARIANTS


@pytest.fixture(autouse=True)
def _registry_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget wirings and norms of files after each test."""
    from fairseq_residuals.wirings.core import norms, registry

    assert VARIANTS
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    monkeypatch.setattr(norms, "_FACTORIES", dict(norms._FACTORIES))

"""The package ``performance`` is optional: without its folder everything works, and more slowly."""

from __future__ import annotations

import importlib
from typing import Any

PERFORMANCE = "fairseq_residuals.performance"


def import_with_performance(name: str) -> Any:
    """Return the module ``name``, which needs the package ``performance``, or None where that package is missing."""
    try:
        importlib.import_module(PERFORMANCE)
    except ModuleNotFoundError as error:
        if error.name != PERFORMANCE:
            raise
        return None
    return importlib.import_module(name)

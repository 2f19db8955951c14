"""A plugin of pytest (``-p hide_performance``): as if the folder of the package ``performance`` were not there."""

from __future__ import annotations

import sys
from typing import Any

HIDDEN = "fairseq_residuals.performance"


class Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == HIDDEN or name.startswith(f"{HIDDEN}."):
            raise ModuleNotFoundError(f"No module named {HIDDEN!r}", name=HIDDEN)


assert HIDDEN not in sys.modules
sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]

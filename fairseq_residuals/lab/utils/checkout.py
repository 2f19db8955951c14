"""What is in a checkout of the repository and not in an installed package: configs, results, the golden files."""

from __future__ import annotations

from pathlib import Path

from fairseq_residuals_errors import UserError

ROOT = Path(__file__).resolve().parents[3]
"""Folder of the checkout; of an installed package, the one that it lies in."""
CONFIGS, RESULTS = ROOT / "configs", ROOT / "results"


def require_checkout(path: Path) -> None:
    """Check that ``path``, which the wheel does not hold, is there.

    Raises:
        UserError: it is not.
    """
    if not path.exists():
        raise UserError(
            f"there is no {path}: it comes with a checkout of the repository and not with an installed package;"
            " clone the repository and install it by pip install -e ."
        )

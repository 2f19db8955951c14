"""Files that a checkout of the repository has and an installed package has not: configs, results, the golden files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import fairseq_residuals
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


def commit() -> str:
    """Return the commit of this checkout, "-dirty" where more than results was changed, or the release installed."""
    # the first score on record changes a file of results, and no later score by that
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    described = _git("rev-parse", "HEAD")
    return f"{described}{'-dirty' if changed else ''}" if described else f"release {fairseq_residuals.__version__}"


def is_committed(path: Path) -> bool:
    """Return whether a file of this checkout is as its commit has it; of files elsewhere, True."""
    return not (path.is_relative_to(ROOT) and _git("status", "--porcelain", "--", str(path)))


def _git(*arguments: str) -> str:
    if shutil.which("git") is None:  # as in a container
        return ""
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

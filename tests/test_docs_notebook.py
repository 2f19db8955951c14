"""docs/teach.ipynb runs as it stands, without fairseq, and shows what its text says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "teach.ipynb"
CHECKS = """
import sys
assert "fairseq" not in sys.modules and "modern_fairseq.compat" not in sys.modules
assert changes["pre_ln"][-1] < 0.5 * changes["pre_ln"][0] and changes["pre_ln"][-1] < changes["post_ln"][-1], changes
last = {wiring: sum(values[-10:]) / 10 for wiring, values in losses.items()}
assert last["post_ln"] > 1.5 and last["pre_ln"] < 0.5 and last["b2t"] < 0.5, last
"""


def test_the_notebook_shows_what_it_says() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    start = "import matplotlib\nmatplotlib.use('Agg')\n"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", start + code + CHECKS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

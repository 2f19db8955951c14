"""The part of docs/EXTEND.md on wirings, followed literally in a copy of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_following_the_page_adds_a_tested_variant(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "EXTEND.md").read_text(encoding="utf-8").partition("## A norm")[0]
    variant, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    places = re.findall(r"`((?:fairseq_residuals/wirings/variants|tests)/\w*my_layer_scale\.py)`", page)
    assert places == ["fairseq_residuals/wirings/variants/my_layer_scale.py", "tests/test_my_layer_scale.py"]
    for name in ("fairseq_residuals", "modern_fairseq", "tests"):
        left_out = ("golden", "commands") if name == "tests" else ()
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", *left_out))
    for name in ("pyproject.toml", "fairseq_residuals_errors.py"):
        shutil.copy(ROOT / name, tmp_path)
    checked = ROOT / ".mypy_cache"  # by test_lint.py; mypy checks again what differs
    if checked.is_dir():
        shutil.copytree(checked, tmp_path / checked.name)
    for place, text in zip(places, (variant, test), strict=True):
        (tmp_path / place).write_text(text, encoding="utf-8")

    def run(*command: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "start=depth" in run("-m", "fairseq_residuals", "show", "my_layer_scale")
    assert "\ntransformer_my_layer_scale\n" in run("-m", "fairseq_residuals", "list", "--architectures")
    (tests,) = re.findall(r"scripts/test\.sh (tests/[^`]*) -k my_layer_scale", page)
    # the graph compiler's test takes as long as all others
    chosen = "my_layer_scale and not compile or its_last_norm"
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests.replace("\\\n", "").split(), places[1], "-k", chosen)
    run("-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), *places)
    run("-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "fairseq_residuals")

"""One file from several modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.export.assemble import assemble

MODEL = "fairseq_residuals.wirings.blocks.halves"


def package(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Write a package ``parts`` and make it importable."""
    (folder / "parts").mkdir()
    for name, text in ({"__init__": ""} | modules).items():
        (folder / "parts" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "parts"]:
        monkeypatch.delitem(sys.modules, name)


def test_what_a_module_imports_comes_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(
        tmp_path,
        monkeypatch,
        one="import math\n\nVALUE = math.floor(2.5)\n",
        two="from parts.one import VALUE\n\n# why\nRESULT = VALUE + 1\n",
    )
    source = assemble("Both.", ["parts.two"], ["parts"])
    values: dict[str, int] = {}
    exec(source, values)
    assert values["RESULT"] == 3 and values["__doc__"] == "Both."
    assert "# why" in source and "parts.one import" not in source


def test_public_names_bring_their_modules_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own module would wait for fairseq in the reader's process."""
    package(tmp_path, monkeypatch, one="from fairseq_residuals import register_norm\n\nregister_norm('a', list)\n")
    source = assemble("", ["parts.one"], ["parts", "fairseq_residuals"])
    values: dict[str, object] = {}
    exec(source, values)
    assert "a" in values["norm_types"]()  # type: ignore[operator]
    assert "sys.meta_path" not in source


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("from parts.one import used\n\ndef helper(): return used\n", "helper is defined in parts.two"),
        ("import fairseq_residuals\n", "from fairseq_residuals import NAME"),
        ("from parts.one import used\nfrom os import path as json\n", "json is imported in two ways"),
        ("from parts.one import used as other\n", "without `as`"),
        ("import parts.one\n", "from parts.one import NAME"),
        ("def late():\n    from parts.one import used\n    return used\n", "inside of a function"),
    ],
)
def test_what_cannot_be_one_file_is_refused(
    second: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = "import json\n\nused = json.dumps(1)\n\n\ndef helper(): return 1\n"
    package(tmp_path, monkeypatch, one=one, two=second)
    with pytest.raises(ValueError, match=message):
        assemble("", ["parts.two"], ["parts", "fairseq_residuals"])


def test_all_wirings_at_once_need_torch_alone(tmp_path: Path) -> None:
    """No two modules of this package share a name, and in a process without fairseq the file runs."""
    wirings = sorted({cls.__module__ for cls in VARIANTS.values() if cls.__module__.startswith("fairseq_residuals.")})
    source = assemble("All.", [MODEL, *wirings])
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported - {"torch"} <= sys.stdlib_module_names
    (tmp_path / "all_in_one.py").write_text(source)
    code = "import all_in_one, sys; print(len(all_in_one._REGISTERED), 'fairseq_residuals' in sys.modules)"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(VARIANTS)), "False"]

"""All patches of fairseq are in one table, each with its reason; the table is printed, and can be switched off."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairseq_residuals
import modern_fairseq
from fairseq_residuals.plugin.register import PATCHES
from modern_fairseq import __main__ as listing
from modern_fairseq import table

PACKAGES = [Path(package.__file__).parent for package in (modern_fairseq, fairseq_residuals)]
ENTRIES = listing.patched()


@pytest.mark.parametrize("name", ENTRIES)
def test_every_patch_says_why_and_until_when(name: str) -> None:
    assert re.search(r"\w\.py:\d+", listing.docstring(name)), "which lines of fairseq 0.12.2 it is for"
    assert re.search(r"\.\s+Can\s+(go\s+(when|with)|stay\s+as\s+long\s+as)\s", listing.docstring(name))


# What the files may change


def scan(text: str, module: str) -> Iterator[str]:
    """The functions that change a fairseq module handed to them, as names; what else changes libraries, as lines."""
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            annotations = [ast.unparse(argument.annotation or ast.Constant("")) for argument in node.args.args]
            if annotations == ["types.ModuleType"]:
                yield f"{module}:{node.name}"
    of_libraries = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] in ("fairseq", "fairseq_cli", "torch")
    }
    for node in ast.walk(tree):
        if any(root(target) in of_libraries for target in changed(node)):
            yield f"{module}: {ast.unparse(node)}"


def changed(node: ast.AST) -> list[ast.expr]:
    """The expressions whose attributes a statement or a call sets."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = [part for target in node.targets for part in getattr(target, "elts", [target])]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr", "override"):
        return node.args[:1]
    return [target.value for target in targets if isinstance(target, ast.Attribute)]


def root(expression: ast.expr) -> str:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def all_changes() -> set[str]:
    return {
        change
        for package in PACKAGES
        for path in package.rglob("*.py")
        for change in scan(path.read_text(), ".".join(path.relative_to(package.parent).with_suffix("").parts))
    }


OUTSIDE = {
    # measures fairseq as it ships, in a process of its own, and takes patches back for it
    "fairseq_residuals.lab.bench.fairseq_models: transformer_encoder.torch = torch",
    "fairseq_residuals.lab.bench.fairseq_models: setattr(FP16Optimizer, name, method)",
    "fairseq_residuals.lab.bench.fairseq_models: utils.multi_tensor_l2norm_available = False",
}


def test_nothing_is_patched_outside_the_table() -> None:
    around = {f"modern_fairseq.{reference}" for reference in table._AROUND.values()}
    assert all_changes() == (ENTRIES.keys() - around) | OUTSIDE


def test_no_class_is_given_the_name_of_another() -> None:
    renamed = [
        f"{path}: {ast.unparse(node)}"
        for package in PACKAGES
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Attribute) and t.attr in ("__name__", "__qualname__") for t in node.targets)
    ]
    assert not renamed


# In processes


def python(code: str, *path: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code with folders in front of Python's path."""
    folders = [*map(str, path), str(PACKAGES[0].parent), os.environ.get("PYTHONPATH", "")]
    clean = {name: value for name, value in os.environ.items() if name != "MODERN_FAIRSEQ"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=clean | {"PYTHONPATH": os.pathsep.join(folders)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def another_version(tmp_path: Path) -> Path:
    """A folder with a stub of fairseq that calls itself 0.12.3."""
    (tmp_path / "fairseq-0.12.3.dist-info").mkdir()
    (tmp_path / "fairseq-0.12.3.dist-info" / "METADATA").write_text("Name: fairseq\nVersion: 0.12.3\n")
    (tmp_path / "fairseq" / "optim").mkdir(parents=True)
    for name in ("__init__.py", "optim/__init__.py", "optim/adam.py"):
        (tmp_path / "fairseq" / name).touch()
    return tmp_path


IS_PATCHED = "import fairseq.optim.adam as adam; print(hasattr(adam, 'eval'))"


def test_another_version_is_left_alone_with_one_sentence(another_version: Path) -> None:
    done = python(IS_PATCHED + "; import modern_fairseq; modern_fairseq.install()", another_version)
    assert done.stdout == "False\n"
    assert done.stderr == "fairseq 0.12.3 is left as it is, since the patches of modern_fairseq are for 0.12.2\n"
    metadata = another_version / "fairseq-0.12.3.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.12.3", "0.12.2"))
    done = python(IS_PATCHED, another_version)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_variable_switches_it_off(another_version: Path) -> None:
    done = python(IS_PATCHED, another_version, MODERN_FAIRSEQ="0")
    assert (done.stdout, done.stderr) == ("False\n", "")
    listed = python("import runpy; runpy.run_module('modern_fairseq', run_name='__main__')", MODERN_FAIRSEQ="0")
    assert listed.returncode == 0 and "Not active: MODERN_FAIRSEQ=0 leaves" in listed.stdout


PLUGIN_OFF = """
import types, sys
from modern_fairseq import table
module = sys.modules["fairseq.trainer"] = types.ModuleType("fairseq.trainer")
def patch(module: types.ModuleType) -> None:
    module.patched = True
table.when_imported("fairseq.trainer", patch)
table.when_imported("fairseq.trainer", patch)
print(vars(module).get("patched", False))
"""


def test_the_switch_holds_for_plugins_too_with_a_warning() -> None:
    assert python(PLUGIN_OFF).stdout == "True\n"
    done = python(PLUGIN_OFF, MODERN_FAIRSEQ="0")
    assert done.stdout == "False\n"
    assert done.stderr == (
        "MODERN_FAIRSEQ=0 leaves fairseq as it is, so __main__.patch does not reach fairseq.trainer\n"
    )


def test_who_reads_the_listing_may_leave() -> None:
    listed = subprocess.run(f"{sys.executable} -m modern_fairseq | true", shell=True, capture_output=True, check=True)
    assert listed.stderr == b""


def test_the_listing_has_every_patch() -> None:
    done = python("import runpy; runpy.run_module('modern_fairseq', run_name='__main__')")
    assert (done.returncode, done.stderr) == (0, "")
    found = re.findall(r"\n(\S+:\w+)\n    patches (.*)", done.stdout)
    assert {name: modules.split(", ") for name, modules in found} == ENTRIES
    assert ENTRIES.keys() >= set(PATCHES.values())
    assert done.stdout.startswith(f"{len(ENTRIES)} patches of fairseq 0.12.2. Active.")

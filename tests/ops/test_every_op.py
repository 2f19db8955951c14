"""Every module of ``ops`` has a short reference and a test against it, and imports little.

New modules are found by themselves.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fairseq_residuals.wirings.ops

PACKAGE = fairseq_residuals.wirings.ops.__name__
ALLOWED = (PACKAGE, "fairseq_residuals.wirings.utils", "torch")
MOST_STATEMENTS = 6
"""Of a reference, its docstring among them."""


def modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(fairseq_residuals.wirings.ops.__path__)]


def tree_of(module: ModuleType) -> ast.Module:
    assert module.__file__ is not None
    return ast.parse(Path(module.__file__).read_text(encoding="utf-8"))


def references(module: ModuleType) -> dict[str, ast.FunctionDef]:
    functions = (node for node in tree_of(module).body if isinstance(node, ast.FunctionDef))
    return {f.name: f for f in functions if f.name == "reference" or f.name.endswith("_reference")}


def op_of(reference: str, module: str) -> set[str]:
    """What the op of a reference may be called: a function, or a class of that name."""
    name = module if reference == "reference" else reference.removesuffix("_reference")
    return {name, "".join(word.capitalize() for word in name.split("_"))}


def imports(tree: ast.Module) -> set[str]:
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return found | {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("name", modules())
def test_an_op_has_a_reference_that_is_short(name: str) -> None:
    module = importlib.import_module(f"{PACKAGE}.{name}")
    found = references(module)
    assert found, f"ops/{name}.py has no function reference, nor <op>_reference"
    for reference, function in found.items():
        assert op_of(reference, name) & set(vars(module)), f"{reference} of ops/{name}.py is of no op"
        assert len(function.body) <= MOST_STATEMENTS, f"{reference} of ops/{name}.py is long for a reference"


@pytest.mark.parametrize("name", modules())
def test_an_op_has_a_test_against_its_reference(name: str) -> None:
    module = importlib.import_module(f"{PACKAGE}.{name}")
    path = Path(__file__).parent / f"test_{name}.py"
    assert path.is_file(), f"ops/{name}.py has no tests/ops/{path.name}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for reference in references(module):
        assert reference in used, f"{path.name} does not use {reference}"
        assert op_of(reference, name) & used, f"{path.name} does not use the op of {reference}"


@pytest.mark.parametrize("name", modules())
def test_ops_import_pytorch_and_utils_only(name: str) -> None:
    for imported in imports(tree_of(importlib.import_module(f"{PACKAGE}.{name}"))):
        package = imported.split(".")[0]
        allowed = any(imported == other or imported.startswith(f"{other}.") for other in ALLOWED)
        assert allowed or package in sys.stdlib_module_names, f"ops/{name}.py imports {imported}"

"""The table of patches for readers: what is patched, why, and until when, read from sources without importing them."""

import ast
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from modern_fairseq import switch, table

PLUGINS = ("fairseq_residuals.plugin.register",)
"""Modules whose ``PATCHES`` are listed where they are installed."""


class Entry(NamedTuple):
    """One patch."""

    name: str
    """``package.module:function``."""
    modules: tuple[str, ...]
    """The fairseq modules that it patches."""
    doc: str
    """Its docstring: why, and when it can go."""


def entries(patches: Iterable[tuple[str, str]]) -> list[Entry]:
    """Return the patches, those of several modules once.

    Args:
        patches: names of fairseq modules with the full ``package.module:function`` of a patch.

    Raises:
        LookupError: there is no such function.
    """
    modules: dict[str, list[str]] = {}
    for module, name in patches:
        modules.setdefault(name, []).append(module)
    return [Entry(name, tuple(patched), _docstring(name)) for name, patched in modules.items()]


def own() -> list[Entry]:
    """Return the patches of this package."""
    return entries((module, f"modern_fairseq.{reference}") for module, reference in table.entries())


def of_plugins() -> list[Entry]:
    """Return the patches of the installed ``PLUGINS``."""
    installed = [name for name in PLUGINS if importlib.util.find_spec(name.partition(".")[0]) is not None]
    return [entry for name in installed for entry in entries(importlib.import_module(name).PATCHES.items())]


def _docstring(name: str) -> str:
    module, _, function = name.partition(":")
    package, *parts = module.split(".")
    spec = importlib.util.find_spec(package)  # of the package alone: its modules would import fairseq
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(f"there is no package {package}")
    path = Path(spec.submodule_search_locations[0], *parts).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.get_docstring(node) or ""
    raise LookupError(f"{module} has no function {function}")


def listing() -> str:
    """Return the table as text: whether patches are active here, and each with its modules and its docstring."""
    reason = switch.reason_if_off()
    patches = own() + of_plugins()
    blocks = [f"{entry.name}\npatches {', '.join(entry.modules)}\n\n{entry.doc}" for entry in patches]
    head = f"{len(patches)} patches of fairseq {switch.VERSION}. " + (f"Not active: {reason}." if reason else "Active.")
    return "\n\n".join([head, *(block.replace("\n", "\n    ") for block in blocks)])

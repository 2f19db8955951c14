"""One file of source from several modules of this package, for places where the package is not installed.

A module's text is taken as it is, comments included; what goes are its imports of the other modules. That is sound only
while no two modules give one name to two things, which is checked.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import fairseq_residuals

REPLACED = {
    "import_variants": '''def import_variants() -> None:
    """Do nothing: the wirings of this file are registered as it is executed."""'''
}
"""Functions that have no meaning in one file, and what stands in their place."""


@dataclass
class Module:
    """A module that becomes a part of the file.

    Attributes:
        text: what is left of it.
        imports: lines of import of other packages.
        needs: modules of this package that it imports.
        names: what it defines.
        used: names that occur in what is left.
    """

    text: str
    imports: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)


def assemble(header: str, roots: Iterable[str], packages: Iterable[str] = ("fairseq_residuals",)) -> str:
    """Return the source of modules and of all that they import of these packages.

    Args:
        header: the file's docstring.
        roots: names of modules; what nothing imports, such as the module of a wiring, has to be named.
        packages: whose modules become parts of the file; of all other packages the imports stay.

    Raises:
        ValueError: two modules define one name, or one imports another inside of a function.
    """
    modules: dict[str, Module] = {}
    for root in roots:
        _add(root, tuple(packages), modules)
    lines: dict[str, None] = dict.fromkeys(line for module in modules.values() for line in module.imports)
    _refuse_clashes(modules, lines)
    used = set().union(*(module.used for module in modules.values()))
    imports = sorted(line for line in lines if _bound_name(line) in used)
    parts = [f'"""{header}"""', "from __future__ import annotations", "\n".join(imports)]
    for name, module in modules.items():
        parts.append(f"# {'-' * 20} {name}\n\n{module.text.strip()}")
    return "\n\n".join(parts) + "\n"


def _add(name: str, packages: tuple[str, ...], modules: dict[str, Module]) -> None:
    """Add a module after those that it needs."""
    if name in modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"there is no source of {name}")
    module = _module(name, Path(spec.origin).read_text(encoding="utf-8"), packages)
    for other in module.needs:
        _add(other, packages, modules)
    modules[name] = module


@cache
def _module(name: str, source: str, packages: tuple[str, ...]) -> Module:
    """Take a module apart, once however many files it becomes a part of."""
    lines, module = source.splitlines(), Module("")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            inside = _inside(node, packages)
            if inside and (isinstance(node, ast.Import) or any(alias.asname for alias in node.names)):
                raise ValueError(f"{name}, line {node.lineno}: write `from {inside[0]} import NAME`, without `as`")
            module.needs += inside
            module.imports += [] if inside else _separate(node)
            replacement = ""
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            replacement = ""
        elif isinstance(node, ast.FunctionDef) and node.name in REPLACED:
            replacement = REPLACED[node.name]
            module.names.add(node.name)
        elif _targets(node) == {"__all__"}:
            replacement = ""
        else:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Import | ast.ImportFrom) and (found := _inside(inner, packages)):
                    raise ValueError(f"{name}, line {inner.lineno}, imports {found[0]} inside of a function")
            module.names |= _targets(node)
            module.used |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
            continue
        # decorators stand above a function
        first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ()))) - 1
        last = node.end_lineno or 0
        # as many lines as before, so that the numbers of those below stay
        lines[first:last] = [replacement, *[""] * (last - first - 1)]
    module.text = _squeezed(lines)
    return module


def _inside(node: ast.Import | ast.ImportFrom, packages: tuple[str, ...]) -> list[str]:
    """Return the modules of these packages that a statement imports from."""
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and names == ["fairseq_residuals"]:  # public names, each of a module of its own
        names = [getattr(fairseq_residuals, alias.name).__module__ for alias in node.names]
    # a module beside the package belongs to it by its name: fairseq_residuals_errors
    return [name for name in names if any(name == p or name.startswith((f"{p}.", f"{p}_")) for p in packages)]


def _separate(node: ast.Import | ast.ImportFrom) -> list[str]:
    """One line for each name, so that equal ones of several modules become one."""
    begin = f"from {node.module} import " if isinstance(node, ast.ImportFrom) else "import "
    return [begin + (alias.name if alias.asname is None else f"{alias.name} as {alias.asname}") for alias in node.names]


def _targets(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return set()


def _refuse_clashes(modules: dict[str, Module], imports: Iterable[str]) -> None:
    owners: dict[str, str] = {}
    for line in imports:
        name = _bound_name(line)
        if line.startswith("import ") and " as " not in line:
            line = f"import {name}"  # of a.b, what is bound is a
        if owners.setdefault(name, line) != line:
            raise ValueError(f"{name} is imported in two ways: {owners[name]} and {line}")
    for name, module in modules.items():
        for defined in module.names:
            if defined in owners:
                raise ValueError(f"{defined} is defined in {name} and comes from {owners[defined]} too")
            owners[defined] = name


def _bound_name(line: str) -> str:
    """Return the name that a line of import binds; of ``import a.b`` that is a."""
    return line.rpartition(" ")[2].partition(".")[0]


def _squeezed(lines: list[str]) -> str:
    """Join lines, without the empty ones that removed statements leave."""
    kept: list[str] = []
    for line in lines:
        if line.strip() or kept[-2:] != ["", ""]:
            kept.append(line if line.strip() else "")
    return "\n".join(kept)

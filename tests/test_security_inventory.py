"""results/security/fairseq-calls.md lists where fairseq runs code, starts programs, unpickles, writes or connects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fairseq
import fairseq_cli

BUILTINS = {"eval", "exec", "compile", "__import__"}
DOTTED = re.compile(
    r"importlib\.import_module|importlib\.util\.spec_from_file_location|runpy\.\w+|torch\.load|torch\.jit\.load"
    r"|torch\.hub\.[a-z]\w*|torch\.utils\.model_zoo\.\w+|numpy\.load|pandas\.read_pickle|shelve\.open"
    r"|(?:pickle|dill|cloudpickle|marshal|joblib)\.(?:loads?|Unpickler)"
    r"|yaml\.(?:load|load_all|full_load|unsafe_load)|os\.(?:system|popen|exec\w+|spawn\w+)"
    r"|subprocess\.(?:run|call|check_call|check_output|Popen|getoutput|getstatusoutput)"
    r"|shutil\.unpack_archive|urllib\.request\.\w+|requests\.(?:get|head|post|put|request|Session)|boto3\.\w+"
    r"|huggingface_hub\.\w+|ctypes\.(?:CDLL|cdll\.\w+)|socket\.socket|fairseq\.file_utils\.cached_path"
    r"|tensorboardX\.SummaryWriter|transformers\.BertTokenizer"
)
METHODS = {"extractall", "extract", "load_state_dict_from_url", "load_library"}


def dangerous_calls(package: Path, leave_out: str) -> set[tuple[str, str]]:
    """Collect them from all sources under a folder.

    Args:
        package: the folder.
        leave_out: the name of a folder in it.

    Returns:
        pairs of ``file:line``, from the folder's parent on, and the name of what is called or handed on.
    """
    places = set()
    for path in package.rglob("*.py"):
        if leave_out not in path.relative_to(package).parts:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names = dict(_imported(tree))
            for node in ast.walk(tree):
                if name := _dangerous(node, names):
                    places.add((f"{path.relative_to(package.parent).as_posix()}:{node.lineno}", name))  # type: ignore[attr-defined]
    return places


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Local names of modules and of what is in them, with the full ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}".removeprefix("builtins.")


def _dangerous(node: ast.AST, names: dict[str, str]) -> str:
    """The name of what a node calls or hands on; empty where it is harmless."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        full = names.get(node.id, node.id)
        return full if full in BUILTINS or DOTTED.fullmatch(full) else ""
    if isinstance(node, ast.Attribute):
        first, _, rest = ast.unparse(node).partition(".")
        full = f"{names.get(first, first)}.{rest}"
        if DOTTED.fullmatch(full):
            return full
        return node.attr if node.attr in METHODS else ""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "open":
        modes = [argument.value for argument in node.args[1:] if isinstance(argument, ast.Constant)]
        return "open" if any(re.match("[wax]", str(mode)) for mode in modes) else ""
    return ""


PAGE = Path(__file__).parents[1] / "results/security/fairseq-calls.md"
ROW = re.compile(r"\| `(fairseq\S*\.py):([\d, ]+)` \| `(\S+)` \| ([^|]+) \| ([^|]+) \|")


def listed() -> list[tuple[str, str]]:
    rows = [row.groups() for row in map(ROW.fullmatch, PAGE.read_text().splitlines()) if row]
    return [(f"{file}:{line}", call) for file, lines, call, *_ in rows for line in lines.split(", ")]


def test_the_list_is_that_of_the_installed_package() -> None:
    packages = (Path(next(iter(package.__path__))) for package in (fairseq, fairseq_cli))
    places = set().union(*(dangerous_calls(package, leave_out="examples") for package in packages))
    assert sorted(listed()) == sorted(places)

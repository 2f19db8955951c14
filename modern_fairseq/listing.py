"""The table of patches for readers: what is patched, why, and until when, read from sources without importing them."""

import ast
import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from modern_fairseq import switch, table

PLUGINS = ("fairseq_residuals.plugin.register",)
"""Modules whose ``PATCHES`` are listed where they are installed: the same mapping as :func:`entries` takes."""
FOLDERS = {
    "compat": "what fairseq needs to run on current versions of Python and its libraries",
    "fixes": "bugs of fairseq",
    "messages": "one sentence for mistakes of users",
}
_WIDTH = 118
_BEGINS_UNTIL = re.compile(r"Can (go|stay) ")


@dataclass(frozen=True)
class Entry:
    """One patch."""

    name: str
    """``package.module:function``."""
    modules: tuple[str, ...]
    """The fairseq modules that it patches."""
    doc: str
    """Its docstring, on one line."""

    @property
    def why(self) -> str:
        """The first sentence of the docstring; empty if there is none."""
        return _sentences(self.doc)[0]

    @property
    def until(self) -> str:
        """The sentence that says when the patch can go; empty if there is none."""
        return next((sentence for sentence in _sentences(self.doc) if _BEGINS_UNTIL.match(sentence)), "")


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.)\s+", re.sub(r":\w+:(?=`)", "", text).replace("``", "`"))


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
    found: list[tuple[str, str]] = []
    for name in PLUGINS:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            patches: Mapping[str, str] = importlib.import_module(name).PATCHES
            found.extend(patches.items())
    return entries(found)


def _docstring(name: str) -> str:
    module, _, function = name.partition(":")
    package, *parts = module.split(".")
    spec = importlib.util.find_spec(package)  # of the package alone: its modules would import fairseq
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(f"there is no package {package}")
    path = Path(spec.submodule_search_locations[0], *parts).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return " ".join((ast.get_docstring(node) or "").split())
    raise LookupError(f"{module} has no function {function}")


def state() -> str:
    """Return one sentence: whether the patches are active here, and in which processes."""
    reason = switch.reason_if_off()
    if reason is not None:
        return f"Not active: {reason}."
    if importlib.util.find_spec("fairseq") is None:
        return "Active once fairseq is installed."
    file = next((path for path in (Path(folder, "modern_fairseq.pth") for folder in sys.path) if path.is_file()), None)
    if file is None:
        return "Active where `import modern_fairseq` comes before fairseq: no modern_fairseq.pth is on Python's path."
    return f"Active in every Python process of this environment, by {file}."


def listing() -> str:
    """Return the table as text, at most 120 columns wide."""
    patches, others = own(), of_plugins()
    active = "yes" if switch.reason_if_off() is None else "no"
    head = f"{len(patches) + len(others)} patches of fairseq {switch.VERSION}. {state()}"
    lines = textwrap.wrap(head, _WIDTH, break_on_hyphens=False, break_long_words=False)
    for folder, title in FOLDERS.items():
        lines += ["", f"{folder}: {title}"]
        for entry in patches:
            if entry.name.startswith(f"modern_fairseq.{folder}."):
                lines += _block(entry, active)
    if others:
        lines += ["", "plugins: what a plugin patches for itself"]
        for entry in others:
            lines += _block(entry, active if active == "no" else "where the plugin is registered and asks for it")
    return "\n".join(lines)


def _block(entry: Entry, active: str) -> list[str]:
    rows = {"patches": ", ".join(entry.modules), "why": entry.why, "until": entry.until, "active": active}
    lines = ["", f"  {entry.name}"]
    for label, text in rows.items():
        wrap = textwrap.TextWrapper(_WIDTH, initial_indent=f"    {label:<9}", subsequent_indent=" " * 13)
        wrap.break_on_hyphens = wrap.break_long_words = False
        lines += wrap.wrap(text)
    return lines

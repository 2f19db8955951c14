"""The import hook: executes a fairseq module as usual, then applies the patches that the table names."""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

from modern_fairseq import table


def _execute(loader: Any, module: types.ModuleType) -> None:
    """Execute a module and patch it; its loader, at which pickling and reload look, is as it was from then on."""
    del loader.exec_module
    vars(loader).pop("get_code", None)
    with table.around(module.__name__):
        loader.exec_module(module)
    for patch in table.patches(module.__name__):
        patch(module)


def _code(fullname: str) -> types.CodeType:
    """Return code that runs the command of the patched module; only ``python -m`` asks for it.

    Executed as ``__main__``, the module would be a second, unpatched copy.
    """
    return compile(f"from {fullname} import cli_main\ncli_main()\n", f"<python -m {fullname}>", "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not table.has(name):
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                loader: Any = spec.loader
                loader.exec_module = functools.partial(_execute, loader)
                if name in table.COMMANDS:
                    loader.get_code = _code
                return spec
        return None


@functools.cache
def install() -> None:
    """Put the import hook in front, unless fairseq is to be left alone, which is said on stderr; once in a process."""
    reason = table.reason_if_off()
    if reason is None:
        sys.meta_path.insert(0, _Finder())
        table.quiet()
    elif os.environ.get(table.SWITCH) != "0":  # who has set the variable knows
        print(reason, file=sys.stderr)

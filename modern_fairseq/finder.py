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


class _Loader(importlib.abc.Loader):
    """Wraps the loader of one module for the time of its execution."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # pickling, inspect, pkgutil and reload look at these: they get the real loader
        module.__loader__ = self.inner
        if module.__spec__ is not None:
            module.__spec__.loader = self.inner
        with table.around(module.__name__):
            self.inner.exec_module(module)
        for patch in table.patches(module.__name__):
            patch(module)

    def get_code(self, fullname: str) -> types.CodeType:
        """Return code that runs the command of the patched module; only ``python -m`` asks for it.

        Executed as ``__main__``, the module would be a second, unpatched copy.
        """
        if fullname not in table.COMMANDS:
            return self.inner.get_code(fullname)
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
                spec.loader = _Loader(spec.loader)
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

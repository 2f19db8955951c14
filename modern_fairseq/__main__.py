"""Print what is patched, why, until when, and whether it is active: ``python -m modern_fairseq``."""

import importlib
import importlib.util
import inspect
import signal

from modern_fairseq import table

PLUGIN = "fairseq_residuals.plugin.register"
"""A module whose ``PATCHES`` are listed where it and fairseq are installed."""


def patched() -> dict[str, list[str]]:
    """Return the fairseq modules that each patch is for, by the patch's ``package.module:function``."""
    pairs = [(module, f"modern_fairseq.{reference}") for module, reference in table.entries()]
    there = all(map(importlib.util.find_spec, ("fairseq", PLUGIN.partition(".")[0])))
    if there and table.reason_if_off() is None:
        pairs += importlib.import_module(PLUGIN).PATCHES.items()
    found: dict[str, list[str]] = {}
    for module, name in pairs:
        found.setdefault(name, []).append(module)
    return found


def docstring(name: str) -> str:
    """Return a patch's docstring, which says why it is there and when it can go."""
    module, _, function = name.partition(":")
    return inspect.getdoc(getattr(importlib.import_module(module), function)) or ""


def listing() -> str:
    """Return the table as text: whether patches are active here, and each with its modules and its docstring."""
    reason, patches = table.reason_if_off(), patched()
    head = f"{len(patches)} patches of fairseq {table.VERSION}. " + (f"Not active: {reason}." if reason else "Active.")
    blocks = [f"{name}\npatches {', '.join(modules)}\n\n{docstring(name)}" for name, modules in patches.items()]
    return "\n\n".join([head, *(block.replace("\n", "\n    ") for block in blocks)])


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # who reads the output (head) may want no more of it
    print(listing())

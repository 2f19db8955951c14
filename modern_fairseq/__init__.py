"""Run fairseq 0.12.2, unchanged, on current Python, PyTorch, NumPy, hydra and omegaconf.

``pip install`` puts a ``.pth`` file beside this package, so that every interpreter of the environment
imports this module when it starts: spawned workers, torchrun and notebooks included.  That has to cost
nothing, which is why only ``sys`` is imported here.  All the rest is loaded the moment that ``fairseq`` is
first found, and each fairseq module is patched right after it has been executed (see
:mod:`modern_fairseq.table` for the list of patches).  Where there is no fairseq, nothing is loaded or changed.

Where ``.pth`` files are not read (``python -S``, ``pip install --target``), call :func:`install` before
fairseq.
"""

import sys

_NAMES = ("fairseq", "fairseq_cli")
AFTER_FAIRSEQ: list = []
"""Functions that the hook calls with fairseq once that has been executed; a plugin adds its own."""


class _Trigger:
    """An entry of ``sys.meta_path`` that waits for the first import of fairseq and then steps aside."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in _NAMES:
            others = [finder for finder in sys.meta_path if finder is not _Trigger]
            if any(finder.find_spec(name, path, target) for finder in others):
                install()
                # the import that asks has passed the front, where the hook is now
                return sys.meta_path[0].find_spec(name, path, target)
        return None


def install() -> None:
    """Arrange for fairseq's modules to be patched as they are imported.  Calling it again does nothing."""
    if _Trigger in sys.meta_path:
        sys.meta_path.remove(_Trigger)
    from modern_fairseq import finder

    finder.install()


if not any(name in sys.modules for name in _NAMES) and _Trigger not in sys.meta_path:
    sys.meta_path.insert(0, _Trigger)

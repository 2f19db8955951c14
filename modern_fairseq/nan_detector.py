"""The search for the module that made a NaN, with which fairseq ends a training whose loss exploded."""

import functools
import types
from typing import Any


def backward_hooks_on_leaves(module: types.ModuleType) -> None:
    """Hook the backward pass of modules without children only.

    nan_detector.py:60 hooks all of them, and PyTorch then looks for a tensor in what each returns. Among the values of
    the dictionary that a Transformer's encoder returns there is none: training ended in StopIteration, without the
    name of the module and without the reason. What a module makes, its leaves make.
    Can go when fairseq > 0.12.2 registers full backward hooks.
    """
    original = module.NanDetector.add_hooks

    @functools.wraps(original)
    def add_hooks(self: Any, hooked: Any) -> None:
        wanted = self.backward
        self.backward = wanted and not any(True for _ in hooked.children())
        original(self, hooked)
        self.backward = wanted

    module.NanDetector.add_hooks = add_hooks

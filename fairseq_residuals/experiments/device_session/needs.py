"""What a session needs beside its checkout, looked for before anything is done."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = ("torch", "fairseq", "numpy", "subword_nmt", "babel", "pytest", "absl")
"""Modules that training, its corpus and the tests import."""
ON_A_GPU = ("triton",)
"""What kernels are written in; PyTorch's builds for CUDA bring it."""
COMPARED = ("ctranslate2",)
"""Without these a session goes on, and the tables say what is not measured."""


def why_not(*modules: str) -> str:
    """Return which of some modules cannot be imported here, as a sentence; empty where all can. None is imported."""
    lacking = [name for name in modules if find_spec(name) is None]
    return f"this Python lacks {', '.join(lacking)}" if lacking else ""

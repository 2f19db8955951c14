"""Files that are written whole or not at all, as :mod:`modern_fairseq`, which cannot import this package, does it."""

from modern_fairseq.atomic_write import atomic_write

__all__ = ["atomic_write"]

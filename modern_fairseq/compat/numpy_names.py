"""NumPy: names and arguments that 1.24 and 2.x removed, and sums that 2.x keeps in 32 bits."""

import types
from typing import Any

import numpy as np

from modern_fairseq.proxies import ModuleProxy, override, replaces


def _percentile(a: Any, q: Any, interpolation: Any) -> Any:
    return np.percentile(a, q, method=interpolation)


def removed_aliases(module: types.ModuleType) -> None:
    """Let ``np.int``, ``np.float`` and ``np.compat.long`` be Python's own int and float, as they always were.

    data/data_utils.py:488, modules/dynamic_crf_layer.py:108 (removed in NumPy 1.24);
    data/token_block_dataset.py:125 (block datasets of language models), data/language_pair_dataset.py:292
    (removed in NumPy 2.0).  ``--num-batch-buckets`` also needs ``np.percentile(interpolation=...)``
    (data/data_utils.py:557), which is ``method`` now.
    Can go when fairseq > 0.12.2 names the types and the argument as NumPy does.
    """
    compat = ModuleProxy(types.ModuleType("numpy.compat"), long=int)
    override(module, "np", int=int, float=float, bool=bool, object=object, compat=compat, percentile=_percentile)


def whole_sums(module: types.ModuleType) -> None:
    """Let a data set that ``--workers`` made together be larger than 2 GiB (data/indexed_dataset.py:415 and :577).

    Its sentences' sizes are of NumPy's int32, and NumPy 2 adds them up in 32 bits: from 2 GiB on the index had negative
    places, and no training could read it. Can go when fairseq > 0.12.2 adds up Python's integers.
    """

    @replaces(module.MMapIndexedDatasetBuilder, "finalize")
    def finalize(original: Any, self: Any, index_file: str) -> None:
        self._sizes = list(map(int, self._sizes))
        original(self, index_file)

"""NumPy: names that 1.24 and 2.0 removed."""

import types

from modern_fairseq.proxies import ModuleProxy, override


def removed_aliases(module: types.ModuleType) -> None:
    """``np.int``, ``np.float`` and ``np.compat.long`` are Python's own int and float, and always were.

    data/data_utils.py:488, modules/dynamic_crf_layer.py:108 (removed in NumPy 1.24); data/token_block_dataset.py:125,
    data/language_pair_dataset.py:292 (NumPy 2.0: block datasets of language models).
    Can go when fairseq > 0.12.2 names the types themselves.
    """
    compat = ModuleProxy(types.ModuleType("numpy.compat"), long=int)
    override(module, "np", int=int, float=float, bool=bool, object=object, compat=compat)

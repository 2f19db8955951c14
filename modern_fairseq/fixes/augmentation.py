"""Augmentation of speech draws the same masks for an example, whether a run was interrupted or not."""

import functools
import inspect
import os
import threading
import types
from collections.abc import Iterator
from typing import Any

from modern_fairseq.proxies import replaces

_ONE_AT_A_TIME = threading.Lock()
"""fairseq loads ahead for training and for validation in two threads, and both draw from NumPy's global state.

In Python 3.11 two threads must not read arrays of NumPy at the same time either: now and then that ends in
"SystemError: AST constructor recursion depth mismatch".
"""
# a worker process is forked while no thread reads: in the child the lock would stay closed
os.register_at_fork(
    before=_ONE_AT_A_TIME.acquire, after_in_parent=_ONE_AT_A_TIME.release, after_in_child=_ONE_AT_A_TIME.release
)


def remember_seed(module: types.ModuleType) -> None:
    """Tell data sets of speech the seed and the epoch that they are made with (speech_to_text_dataset.py:449).

    Speech to speech, and speech with text, have makers of their own (speech_to_speech_dataset.py:401,
    speech_to_text_joint_dataset.py:314). Can go with :func:`draw_by_example`.
    """
    for creator in list(vars(module).values()):
        if getattr(creator, "__module__", "") == module.__name__ and "from_tsv" in vars(creator):
            creator.from_tsv = classmethod(_remembering(creator.from_tsv.__func__))


def _remembering(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def from_tsv(cls: Any, *args: Any, **kwargs: Any) -> Any:
        whole = original(cls, *args, **kwargs)
        arguments = signature.bind(cls, *args, **kwargs).arguments
        for part in _parts(whole):
            part.seed, part.epoch = arguments["seed"], arguments["epoch"]
        return whole

    return from_tsv


def draw_by_example(module: types.ModuleType) -> None:
    """Draw what SpecAugment masks from the run's seed, the epoch and the example (speech_to_text_dataset.py:178-193).

    fairseq draws from NumPy's global state, which no checkpoint holds, and which depends on how many examples were
    loaded ahead. Its data sets of text draw by example already (such as data/mask_tokens_dataset.py:116). Can go when
    fairseq > 0.12.2 does so for speech.
    """

    @replaces(module.SpeechToTextDataset, "_get_source_audio")
    def get_source_audio(original: Any, self: Any, index: int) -> Any:
        with _ONE_AT_A_TIME:
            if not hasattr(self, "seed"):  # not from a manifest
                return original(self, index)
            with module.fairseq_data_utils.numpy_seed(self.seed, self.epoch, int(index)):
                return original(self, index)

    def set_epoch(self: Any, epoch: int) -> None:
        self.epoch = epoch

    module.SpeechToTextDataset.set_epoch = set_epoch


def _parts(whole: Any) -> Iterator[Any]:
    """Yield the data sets of which one is put together: concatenated (datasets), or sampled from (dataset)."""
    parts = getattr(whole, "datasets", None) or [part for part in (getattr(whole, "dataset", None),) if part]
    if not parts:
        yield whole
    for part in parts:
        yield from _parts(part)

"""Batches come in the order that was asked for, and what loads them in the background ends before Python does."""

import atexit
import queue
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from modern_fairseq.proxies import replaces

_PROCESSES, _BATCHES = "num_shards", "num_batches"
"""Keys of an iterator's state: the processes that share each epoch's batches, and how many batches these are."""
_stopping = threading.Event()
_consumers: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def _until_stopped(source: Iterable) -> Iterator:
    for item in source:
        if _stopping.is_set():
            return
        yield item


def _stop() -> None:
    _stopping.set()
    for consumer in list(_consumers):
        while consumer.is_alive():
            try:  # it may wait for a place in a full queue
                consumer._queue.get(timeout=0.05)  # type: ignore[attr-defined]
            except queue.Empty:
                continue


def background_ends_first(module: types.ModuleType) -> None:
    """End the thread that prepares batches before the interpreter shuts down (data/iterators.py:656-705).

    It is a daemon: when training stops inside an epoch it goes on, and Python ends it by unwinding its stack as soon
    as it wants the lock of the interpreter back.  If that happens inside PyTorch, C++ calls std::terminate: a run
    that has finished and saved ends with "terminate called without an active exception" and SIGABRT.
    Can go when Python >= 3.14, which lets such threads hang instead, is required, or when fairseq > 0.12.2 joins
    its thread.
    """

    class BackgroundConsumer(module.BackgroundConsumer):  # type: ignore[name-defined, misc]
        def __init__(self, items: Any, source: Iterable, *args: Any, **kwargs: Any) -> None:
            super().__init__(items, _until_stopped(source), *args, **kwargs)
            _consumers.add(self)

    module.BackgroundConsumer = BackgroundConsumer  # type: ignore[attr-defined]
    atexit.register(_stop)


class _Copied(torch.utils.data.Dataset):
    """A data set of which the copies in other processes learn the epoch too."""

    def __init__(self, data: Any) -> None:
        self.data, self.known, self.shared = data, 0, torch.tensor(0).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self.shared.fill_(epoch)
        self.known = epoch
        self.data.set_epoch(epoch)

    def __getitem__(self, index: Any) -> Any:
        if self.known != int(self.shared):
            self.set_epoch(int(self.shared))
        return self.data[index]

    def __len__(self) -> int:
        return len(self.data)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a copy that is being unpickled has no data yet
            raise AttributeError(name)
        return getattr(self.data, name)


def epochs_in_processes(module: types.ModuleType) -> None:
    """Tell the processes that load data which epoch it is (data/iterators.py:506).

    They live through all epochs, with a copy of the data set that knew the first one alone: with ``--num-workers`` 1,
    the default, RoBERTa's masks were the same in all epochs, unless a run was resumed. Can go when fairseq > 0.12.2
    tells them.
    """

    @replaces(module.EpochBatchIterator, "__init__")
    def __init__(original: Any, self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        original(self, dataset, *args, **kwargs)
        if hasattr(dataset, "set_epoch"):
            self.dataset = _Copied(dataset)


def epochs_as_asked(module: types.ModuleType) -> None:
    """Shuffle after ``--curriculum``, and skip the last batch alone of a resumed epoch (data/iterators.py:477-526).

    A loader that is used again kept the first epoch's choice not to shuffle, unless the run was resumed. With
    ``--skip-remainder-batch`` a resumed epoch lost as many batches as it had had before. Can go when fairseq > 0.12.2
    passes ``shuffle`` on and counts from the offset.
    """

    @replaces(module.EpochBatchIterator, "_get_iterator_for_epoch")
    def get_iterator_for_epoch(
        original: Any, self: Any, epoch: int, shuffle: bool, fix_batches_to_gpus: bool = False, offset: int = 0
    ) -> Any:
        if self.reuse_dataloader and self.dataloader is not None:
            self.batch_sampler.shuffle = shuffle
        skips, self.skip_remainder_batch = self.skip_remainder_batch, False
        try:
            batches = original(self, epoch, shuffle, fix_batches_to_gpus=fix_batches_to_gpus, offset=offset)
        finally:
            self.skip_remainder_batch = skips
        if skips and batches is not None:
            batches.take(offset + len(self.batch_sampler) - 1)
        return batches


def batches_of_each_epoch(module: types.ModuleType) -> None:
    """Make the batches of each epoch anew with ``--update-ordered-indices-seed`` (trainer.py:705-717).

    Those of one epoch came in all, and others after a resumption. Can go when fairseq > 0.12.2 makes them anew.
    """

    @replaces(module.Trainer, "get_train_iterator")
    def get_train_iterator(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        anew = kwargs.get("disable_iterator_cache", False) or self.cfg.dataset.update_ordered_indices_seed
        return original(self, *args, **kwargs | {"disable_iterator_cache": anew})


def position_in_batches(module: types.ModuleType) -> None:
    """Go on behind the batches that were trained on, also by another number of processes (data/iterators.py:437-477).

    A checkpoint counts those of each process: two processes after one left out as many batches again, and one after two
    took half of them twice. Larger batches ended in "dataloader mismatch", smaller ones came again: now the same share
    of the epoch is left out. Can go when fairseq > 0.12.2 counts those of all processes, and says of how many.
    """
    iterator = module.EpochBatchIterator

    @replaces(iterator, "state_dict")
    def state_dict(original: Any, self: Any) -> dict[str, Any]:
        return {**original(self), _PROCESSES: self.num_shards, _BATCHES: len(self.frozen_batches)}

    @replaces(iterator, "load_state_dict")
    def load_state_dict(original: Any, self: Any, state: dict[str, Any]) -> None:
        trained_on = state.get("iterations_in_epoch", 0) * state.get(_PROCESSES, self.num_shards)
        if trained_on:
            self.epoch = state["epoch"]  # of which some data sets have batches of their own
            batches = len(self.frozen_batches)
            trained_on = trained_on * batches // state.get(_BATCHES, batches)
        original(self, {**state, "iterations_in_epoch": trained_on // self.num_shards})

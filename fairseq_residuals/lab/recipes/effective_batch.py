"""The effective batch stays what the recipe says, whatever the number of devices and their memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from fairseq_residuals.lab.recipes.compose import effective_batch
from fairseq_residuals.wirings.core.errors import UserError


@dataclass(frozen=True)
class Batch:
    """Division of an update's tokens among devices and passes."""

    devices: int
    max_tokens: int
    """Maximum tokens per device and pass."""
    update_freq: int
    """Passes per update."""
    wanted: int
    """Tokens per update that the recipe asks for."""
    idle: str = ""
    """Words on which devices have nothing to do, and why."""

    @property
    def tokens(self) -> int:
        """Tokens per update that it comes to."""
        return self.devices * self.max_tokens * self.update_freq

    def __str__(self) -> str:
        made = f"{self.max_tokens} tokens x {self.update_freq} passes x {self.devices} devices = {self.tokens:,}"
        made = made if self.tokens == self.wanted else f"{made} (the recipe: {self.wanted:,})"
        return "; ".join(filter(None, (made, self.idle)))


def batch_on(asked: DictConfig, data: Path, devices: int, max_tokens: int | None) -> Batch:
    """Return how a recipe's batch is shared out among devices.

    Args:
        asked: the composed configuration, for one device.
        data: the binarized corpus; what is not prepared has no longest sample.
        max_tokens: of a pass; None: the recipe's.

    Raises:
        UserError: it cannot be shared out.
    """
    task, at_most = asked.task, max_tokens or asked.dataset.max_tokens
    block = task.tokens_per_sample if task._name == "language_modeling" and task.sample_break_mode == "none" else 0
    wanted = effective_batch(asked)
    longest = block or longest_sample(data, asked)
    if block:
        return share_out(wanted, devices, at_most, block)
    if longest == 0:  # nothing is prepared
        return share_out(wanted, devices, at_most)
    return share_out_among(wanted, devices, at_most, longest)


def share_out_among(wanted: int, devices: int, at_most: int, longest: int) -> Batch:
    """Return the same as :func:`share_out` on as many of the devices as let the longest sample fit into a pass.

    Raises:
        UserError: it fits into no pass.
    """
    for used in range(devices, 0, -1):
        if wanted < used:
            continue
        batch = share_out(wanted, used, at_most)
        if batch.max_tokens >= longest:
            left = devices - used
            idle = f"{left} device{' stays' if left == 1 else 's stay'} idle, for one sample has {longest} tokens"
            return replace(batch, idle=idle if left else "")
    raise UserError(f"one sample of this corpus has {longest} tokens: a device must take at least as many")


def share_out(wanted: int, devices: int, at_most: int, at_least: int = 1) -> Batch:
    """Return the fewest passes in which ``devices`` see ``wanted`` tokens.

    A remainder makes the passes smaller, never larger.

    Args:
        wanted: tokens per update.
        at_most: tokens that a device can take in a pass.
        at_least: tokens of one sample, where all have as many: a pass is filled with whole ones.

    Raises:
        UserError: it cannot be done.
    """
    if at_most < at_least:
        raise UserError(f"one sample of this recipe has {at_least} tokens: a device must take at least as many")
    if at_least > 1:
        tokens, passes = _whole_samples(wanted // at_least, devices, at_most // at_least)
        tokens *= at_least
    else:
        passes = -(-wanted // (devices * at_most))
        tokens = wanted // (devices * passes)
    if not tokens:
        raise UserError(
            f"{wanted} tokens per update are less than one sample of {at_least} tokens on each of {devices} devices:"
            f" at most {wanted // at_least} can share them"
        )
    return Batch(devices, tokens, passes, wanted)


def _whole_samples(wanted: int, devices: int, at_most: int) -> tuple[int, int]:
    """Return samples in a pass, and passes, that come closest to ``wanted`` samples per update from below.

    Both are 0 if none do. fairseq takes less than eight samples at a time, or a multiple of eight.
    """
    sizes = [n for n in range(1, at_most + 1) if n < 8 or n % 8 == 0]
    _, size = max((wanted // (devices * n) * n, n) for n in sizes)
    passes = wanted // (devices * size)
    return (size, passes) if passes else (0, 0)


def longest_sample(data: Path, config: DictConfig) -> int:
    """Return the tokens (in speech: frames) of the longest sample of training and validation; 0 where none is there.

    Args:
        data: the binarized corpus.
        config: a composed configuration; samples of more positions than its task takes are left out by fairseq.
    """
    task = config.task
    # the defaults of fairseq's tasks, of which that of speech has no dataclass to name them
    limit = task.get("max_source_positions") or (6000 if task._name == "speech_to_text" else 1024)
    subsets = f"{config.dataset.train_subset},{config.dataset.valid_subset}".split(",")
    longest = 0
    for sizes in _sizes(data, subsets):
        fitting = np.minimum(sizes, limit) if task.get("truncate_source") else sizes[sizes <= limit]
        longest = max(longest, int(fitting.max(initial=0)))
    return longest


def _sizes(data: Path, subsets: list[str]) -> Iterator[Any]:
    from fairseq.data.indexed_dataset import infer_dataset_impl, make_dataset

    for subset in subsets:
        for index in sorted(data.glob(f"{subset}.*.idx")):  # subset.pair.language
            path = str(index.with_suffix(""))
            samples = make_dataset(path, impl=infer_dataset_impl(path) or "cached", fix_lua_indexing=True)
            yield np.array(samples.sizes)  # a copy: the data set closes its file once it is freed, read or not
        manifest = data / f"{subset}.tsv"
        if manifest.is_file():
            with manifest.open(encoding="utf-8", newline="") as lines:
                rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
                yield np.array([int(row["n_frames"]) for row in rows])

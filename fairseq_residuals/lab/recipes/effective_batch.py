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
from fairseq_residuals.lab.recipes.machine import AUTO, Machine, MaxTokens
from fairseq_residuals.lab.recipes.model_size import Size, size_of
from fairseq_residuals.wirings.core.errors import UserError

USED = 0.75
"""Of a GPU's memory. The rest is for what fragments it, and for wirings that keep more than Post-LN."""


@dataclass(frozen=True)
class Batch:
    """How an update's tokens are shared out."""

    devices: int
    max_tokens: int
    """Per device and pass."""
    update_freq: int
    """Passes per update."""
    wanted: int
    """Tokens per update that the recipe asks for."""
    idle: str = ""
    """Which devices have nothing to do, and why."""
    at_once: int = 1
    """How many of the recipe's passes one pass is, as the memory of a GPU holds them."""

    @property
    def tokens(self) -> int:
        """Tokens per update that it comes to."""
        return self.devices * self.max_tokens * self.update_freq

    def __str__(self) -> str:
        made = f"{self.max_tokens} tokens x {self.update_freq} passes x {self.devices} devices = {self.tokens:,}"
        made = made if self.tokens == self.wanted else f"{made} (the recipe: {self.wanted:,})"
        grown = f"a pass is {self.at_once} of the recipe's" if self.at_once > 1 else ""
        return "; ".join(filter(None, (made, grown, self.idle)))


def batch_on(asked: DictConfig, data: Path, machine: Machine, max_tokens: MaxTokens) -> Batch:
    """Return how a recipe's batch is shared out on a machine.

    A language model's blocks are of one length, so that as many stand in an update whatever the passes are; there
    passes grow with the memory unasked. Sentences are batched by length, and :data:`AUTO` asks for it.

    Args:
        asked: the composed configuration, for one device.
        data: the binarized corpus; what is not prepared has no longest sample.
        max_tokens: of a pass; None: the recipe's.

    Raises:
        UserError: it cannot be shared out.
    """
    task, own = asked.task, asked.dataset.max_tokens
    block = task.tokens_per_sample if task._name == "language_modeling" and task.sample_break_mode == "none" else 0
    wanted, devices = effective_batch(asked), machine.devices
    longest = block or longest_sample(data, asked)
    grows = max_tokens == AUTO or (max_tokens is None and block > 0)
    at_once = _at_once(asked, data, machine, longest) if grows else 1
    at_most = max_tokens if isinstance(max_tokens, int) else own * at_once
    if block:
        batch = share_out(wanted, devices, at_most, block)
    elif longest == 0:  # nothing is prepared
        batch = share_out(wanted, devices, at_most)
    else:
        batch = share_out_among(wanted, devices, at_most, longest)
    if machine.nodes > 1 and batch.idle:
        raise UserError(f"on {machine.nodes} nodes: {batch.idle}; choose fewer nodes")
    return replace(batch, at_once=at_once)


def _at_once(asked: DictConfig, data: Path, machine: Machine, longest: int) -> int:
    """Return how many of the recipe's passes are one; 1 where they are no equal parts of an update, or of speech."""
    own, wanted = asked.dataset.max_tokens, effective_batch(asked)
    if machine.memory is None or machine.nodes > 1 or wanted % (own * machine.devices):
        return 1
    size = size_of(asked, data)
    if size.convolutions:
        return 1
    passes = wanted // (own * machine.devices)
    longest = longest or asked.task.get("max_source_positions") or 1024
    half = asked.common.fp16 or asked.common.bf16
    return passes_at_once(size, passes, own, longest, half, machine.memory)


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
        fitting = [n for n in range(1, wanted // at_least + 1) if wanted % (n * at_most) == 0]
        raise UserError(
            f"{wanted} tokens per update on {devices} devices would be passes of less than the {at_least} tokens that"
            f" one sample of this recipe has; choose a number of devices out of {', '.join(map(str, fitting))}"
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
    task, limit = config.task, _longest_accepted(config)
    subsets = f"{config.dataset.train_subset},{config.dataset.valid_subset}".split(",")
    longest = 0
    for sizes in _sizes(data, subsets):
        fitting = np.minimum(sizes, limit) if task.get("truncate_source") else sizes[sizes <= limit]
        longest = max(longest, int(fitting.max(initial=0)))
    return longest


def _longest_accepted(config: DictConfig) -> int:
    """Return the positions of the longest sample that the task of a composed configuration takes."""
    task = config.task
    # the defaults of fairseq's tasks, of which that of speech has no dataclass to name them
    return task.get("max_source_positions") or (6000 if task._name == "speech_to_text" else 1024)


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


def bytes_of_a_pass(size: Size, tokens: int, longest: int, half: bool) -> int:
    """Return the bytes that training holds after a forward pass, for Post-LN.

    What a layer keeps is what Korthikanti et al. count (2022, "Reducing activation recomputation in large transformer
    models", section 4.1); in single precision it is twice as much.

    Args:
        tokens: of a side.
        longest: positions of the longest sample, each of which attention compares with all others.
        half: whether the model computes in half precision.
    """
    kept = sum(s.layers * _kept_by_layer(s.width, s.inner, s.heads, s.reads_encoder, longest) for s in size.stacks)
    # scores of words and their gradients, in the model's precision and in single
    scores = 12 * size.compared
    # weights, gradients, copies of both in single precision, two moments
    per_parameter = 20 if half else 16
    return per_parameter * size.matrices.stored + tokens * (kept * (1 if half else 2) + scores)


def _kept_by_layer(width: int, inner: int, heads: int, reads_encoder: bool, longest: int) -> int:
    attentions = 2 if reads_encoder else 1
    attention = 11 * width + 5 * heads * longest
    ffn = 3 * width + 4 * inner
    norms = 2 * width * (attentions + 1)
    return attentions * attention + ffn + norms


def passes_at_once(size: Size, passes: int, tokens: int, longest: int, half: bool, memory: int) -> int:
    """Return the largest power of two that divides ``passes`` and of which so many passes fit into ``memory`` bytes.

    Args:
        passes: of an update.
        tokens: of a pass.
    """
    at_once = 1
    while passes % (2 * at_once) == 0 and bytes_of_a_pass(size, 2 * at_once * tokens, longest, half) <= USED * memory:
        at_once *= 2
    return at_once

"""Costs of runs, before anything is run: updates, passes, hours of a device, disk, files to download.

Hours are derived, not measured: from one measured step (results/bench/devices.yaml), in proportion to the entries of
the matrices that each position is multiplied with; where the device waits for Python, in proportion to the layers. In
speech, positions are reckoned from frames. What a wiring itself costs is left out (results/bench/README.md has it), as
are validation and generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_residuals.lab.data.corpora import CORPORA, find_corpus
from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.lab.recipes.model_size import Matrices, Stack, count, matrices_of
from fairseq_residuals.lab.recipes.stages import is_prepared, is_trained
from fairseq_residuals.lab.utils.checkout import RESULTS
from modern_fairseq.plain_yaml import read_yaml

DEVICES = RESULTS / "bench" / "devices.yaml"
_GIB = 2**30


@dataclass(frozen=True)
class Device:
    """A measured step of a model."""

    name: str
    seconds: tuple[float, float]
    busy: float
    tokens: int
    model: Matrices
    widths: tuple[int, int]
    """Channels of the models that it stands for: more than the first, at most the second."""

    def hours(self, matrices: Matrices, passes: int, tokens: int) -> tuple[float, float]:
        """Return the least and the most hours that this many passes of so many tokens a side take."""
        share = matrices.multiplied / self.model.multiplied * tokens / self.tokens
        by_layers = matrices.layers / self.model.layers
        if self.seconds[1] <= self.busy * 1.25:  # the device hardly waits for Python
            return tuple(passes * seconds * share / 3600 for seconds in self.seconds)  # type: ignore[return-value]
        return tuple(  # type: ignore[return-value]
            passes * max(seconds * by_layers, self.busy * share) / 3600 for seconds in self.seconds
        )

    def serves(self, matrices: Matrices) -> bool:
        return self.widths[0] < matrices.width <= self.widths[1]


def devices() -> list[Device]:
    """Return the devices on which a step was measured."""
    return [
        Device(
            name,
            tuple(entry["seconds"]),
            entry["busy"],
            entry["tokens"],
            _measured(*entry["model"]),
            tuple(entry.get("widths", (0, 10**6))),
        )
        for name, entry in read_yaml(DEVICES).items()
    ]


def _measured(layers: int, width: int, inner: int, vocabulary: int) -> Matrices:
    stacks = tuple(Stack(layers, width, inner, reads) for reads in (False, True))
    return count(stacks, vocabulary, vocabulary * width)


def summary(work: Sequence[Job]) -> Iterator[str]:
    """Yield what the runs that have not been made would take, a line each."""
    jobs = [job for job in work if not is_trained(job)]
    updates = sum(job.asked.optimization.max_update for job in jobs)
    passes = sum(job.asked.optimization.max_update * job.batch.update_freq for job in jobs)
    runs = "1 run" if len(jobs) == 1 else f"{len(jobs)} runs"
    yield f"{runs}, at most {updates:,} updates, {passes:,} passes in all on each device"
    reckoned = [(job, matrices_of(job)) for job in jobs]
    for device in devices():
        served = [(job, matrices) for job, matrices in reckoned if device.serves(matrices)]
        least = most = 0.0
        for job, matrices in served:
            batch = job.batch
            total = job.asked.optimization.max_update * batch.update_freq * batch.devices
            hours = device.hours(matrices, total, batch.max_tokens)
            least, most = least + hours[0], most + hours[1]
        if served:
            spread = " to ".join(dict.fromkeys(map(_rounded, (least, most))))
            of = f" for {len(served)} of the runs" if len(served) < len(jobs) else ""
            source = DEVICES.relative_to(RESULTS.parent)
            yield f"about {spread} hours of one device{of} ({device.name}; derived from {source})"
    disk = sum(_checkpoints(job.asked) * _bytes(job, matrices) for job, matrices in reckoned)
    yield f"about {_rounded(disk / _GIB)} GiB of checkpoints, corpora not counted"
    yield _downloads(jobs)


def _rounded(number: float) -> str:
    if number >= 10:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 0.1 else f"{number:.1g}"


def _checkpoints(config: Any) -> int:
    """Return how many checkpoints a run keeps: the last ones, the best, and the very last."""
    saving = config.checkpoint
    return max(saving.keep_last_epochs, 0) + max(saving.keep_interval_updates, 0) + 2


def _bytes(job: Job, matrices: Matrices) -> int:
    """Return the size of a checkpoint: the weights, and two moments of Adam in single precision."""
    common = job.asked.common
    return matrices.stored * ((2 if common.fp16 or common.bf16 else 4) + 8)


def _downloads(jobs: Sequence[Job]) -> str:
    """Return how many files are to be downloaded, and how large those are whose sizes are known."""
    unprepared = {job.corpus: job for job in jobs if not is_prepared(job) and job.recipe.corpus in CORPORA}
    sizes: dict[str, int] = {}
    here = set()
    for job in unprepared.values():
        _, variant = find_corpus(job.recipe.corpus).variant(job.recipe.variant)
        for source in variant.sources:
            if (job.settings.downloads / source.name).exists():
                here.add(source.name)
            else:
                sizes[source.name] = source.size
    files = "1 file" if len(sizes) == 1 else f"{len(sizes)} files"
    known = [size for size in sizes.values() if size]
    megabytes = f"{_rounded(sum(known) / 1e6)} MB"
    size, besides = "", ""
    if len(known) == len(sizes) > 0:
        size = f" of {megabytes}" + " together" * (len(known) > 1)
    elif known:
        besides = f" ({megabytes} and {len(sizes) - len(known)} of unknown size)"
    names = dict.fromkeys(job.recipe.corpus for job in unprepared.values())
    lists = "".join(f"; `fairseq-residuals prepare {name} --sources` lists them" for name in names)
    return f"{files}{size} to download or supply{besides}, {len(here)} are here{lists}"

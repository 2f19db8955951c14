"""What runs cost, before anything is run: updates, passes, hours of a device, disk, files to download.

Hours are derived, not measured: from one measured step (results/bench/devices.yaml), in proportion to the entries of
the matrices that each position is multiplied with; where the device waits for Python, in proportion to the layers.
What a wiring itself costs is left out (docs/PERFORMANCE.md has it), as are validation and generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_residuals.data.corpora import CORPORA, find_corpus
from fairseq_residuals.experiments.job import Job
from fairseq_residuals.experiments.model_size import VOCABULARY, Matrices, size_of
from fairseq_residuals.experiments.stages import is_prepared, is_trained
from fairseq_residuals.utils.checkout import RESULTS
from modern_fairseq.plain_yaml import read_yaml

DEVICES = RESULTS / "bench" / "devices.yaml"
_GIB = 2**30


MEASURED = Matrices(36, 18 * (4 + 8) * 512**2 + 36 * 2 * 512 * 2048 + VOCABULARY * 512, 0)
"""The model of all figures in devices.yaml."""


@dataclass(frozen=True)
class Device:
    """A measured step of :data:`MEASURED`."""

    name: str
    seconds: tuple[float, float]
    busy: float
    tokens: int

    def hours(self, matrices: Matrices, passes: int, tokens: int) -> tuple[float, float]:
        """Return the least and the most hours that this many passes of so many tokens a side take."""
        share = matrices.multiplied / MEASURED.multiplied * tokens / self.tokens
        by_layers = matrices.layers / MEASURED.layers
        if self.seconds[1] <= self.busy * 1.25:  # the device hardly waits for Python
            return tuple(passes * seconds * share / 3600 for seconds in self.seconds)  # type: ignore[return-value]
        return tuple(  # type: ignore[return-value]
            passes * max(seconds * by_layers, self.busy * share) / 3600 for seconds in self.seconds
        )


def devices() -> list[Device]:
    """Return the devices on which a step was measured."""
    return [
        Device(name, tuple(entry["seconds"]), entry["busy"], entry["tokens"])
        for name, entry in read_yaml(DEVICES).items()
    ]


def matrices_of(job: Job) -> Matrices | None:
    """Return the matrices of a run's model; None of speech, whose frames are not tokens."""
    size = size_of(job.asked, job.data)
    return None if size is None else size.matrices


def summary(work: Sequence[Job]) -> Iterator[str]:
    """Yield what the runs that have not been made would take, a line each."""
    jobs = [job for job in work if not is_trained(job)]
    updates = sum(job.asked.optimization.max_update for job in jobs)
    passes = sum(job.asked.optimization.max_update * job.batch.update_freq for job in jobs)
    yield f"{len(jobs)} runs, at most {updates:,} updates of {passes:,} passes on each device"
    reckoned = [(job, matrices) for job in jobs if (matrices := matrices_of(job)) is not None]
    for device in devices():
        least = most = 0.0
        for job, matrices in reckoned:
            batch = job.batch
            total = job.asked.optimization.max_update * batch.update_freq * batch.devices
            hours = device.hours(matrices, total, batch.max_tokens)
            least, most = least + hours[0], most + hours[1]
        if reckoned:
            spread = " to ".join(dict.fromkeys(map(_rounded, (least, most))))
            yield f"about {spread} hours ({device.name}; derived from {DEVICES.relative_to(RESULTS.parent)})"
    if len(reckoned) < len(jobs):
        yield f"{len(jobs) - len(reckoned)} runs of speech, of which no step was measured, are not in these hours"
    disk = sum(_checkpoints(job.asked) * _bytes(job, matrices) for job, matrices in reckoned)
    yield f"about {disk / _GIB:,.0f} GiB of checkpoints, corpora not counted"
    yield _downloads(jobs)


def _rounded(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}"


def _checkpoints(config: Any) -> int:
    """Return how many checkpoints a run keeps: the last ones, the best, and the very last."""
    saving = config.checkpoint
    return max(saving.keep_last_epochs, 0) + max(saving.keep_interval_updates, 0) + 2


def _bytes(job: Job, matrices: Matrices) -> int:
    """Return the size of a checkpoint: the weights, and two moments of Adam in single precision."""
    common = job.asked.common
    return matrices.stored * ((2 if common.fp16 or common.bf16 else 4) + 8)


def _downloads(jobs: Sequence[Job]) -> str:
    """Return how many files are to be downloaded; no publisher's sizes are known here."""
    unprepared = {job.corpus: job for job in jobs if not is_prepared(job) and job.recipe.corpus in CORPORA}
    files: dict[str, bool] = {}
    for job in unprepared.values():
        _, variant = find_corpus(job.recipe.corpus).variant(job.recipe.variant)
        for source in variant.sources:
            files[source.name] = (job.settings.downloads / source.name).exists()
    here = sum(files.values())
    return f"{len(files) - here} files to download or supply, {here} are here; `prepare --sources` lists them"

"""Which runs can be made: a table may need corpora that its user has to supply, and one of several may be missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fairseq_residuals.lab.data.corpora import CORPORA, find_corpus
from fairseq_residuals.lab.data.pipeline.mirrors import Mirror
from fairseq_residuals.lab.recipes.job import Job, Settings
from fairseq_residuals.lab.recipes.tables.cells import Cell

_VARIANT = "recipe.variant="


def settings_by_config(settings: Settings, names: Iterable[str]) -> dict[str, Settings]:
    """Return the settings of each configuration: an override of ``recipe.variant`` reaches the corpora that have it.

    Where no corpus has it, it reaches all, so that the corpus can say which ones it has.
    """
    by_name = dict.fromkeys(names, settings)
    chosen = [override for override in settings.overrides if override.lstrip("+").startswith(_VARIANT)]
    if not chosen:
        return by_name
    variant = chosen[-1].partition("=")[2]
    without = replace(settings, overrides=tuple(o for o in settings.overrides if o not in chosen))
    lacking = {name for name in by_name if not _has(Job(without, name).recipe.corpus, variant)}
    return by_name if len(lacking) == len(by_name) else by_name | dict.fromkeys(lacking, without)


def _has(corpus: str, variant: str) -> bool:
    return variant == "null" or corpus not in CORPORA or variant in find_corpus(corpus).variants


def why_unobtainable(job: Job) -> str:
    """Return why the corpus of a run cannot be prepared, as far as this machine alone can tell; "" where it may be.

    Raises:
        UserError: the corpus has no such variant.
    """
    if job.recipe.corpus not in CORPORA:  # synthetic data, which have been made
        return ""
    corpus = find_corpus(job.recipe.corpus)
    _, variant = corpus.variant(job.recipe.variant)
    setting = str(job.settings.mirror) if job.settings.mirror else os.environ.get("MIRROR")
    downloads = Mirror.of(setting, corpus, stand_in=job.settings.mirror is not None).downloads(job.settings.downloads)
    return next(filter(None, map(downloads.unobtainable, variant.sources)), "")


def describe(work: Mapping[Job, list[Cell]], reasons: Mapping[Path, str]) -> str:
    """Return one sentence about the cells that are left out, by the folders of their corpora; "" where none are."""
    parts = []
    for folder, reason in reasons.items():
        cells = dict.fromkeys((cell.row, cell.column) for job in work if job.corpus == folder for cell in work[job])
        columns = ", ".join(dict.fromkeys(column for _, column in cells))
        parts.append(f"{len(cells)} cells ({columns}), for {reason.rstrip('.')}")
    return f"left out: {'; '.join(parts)}" if parts else ""

"""Scores: the metrics of the papers, for files and for fairseq-generate."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """One number, or one per number of updates."""

    metric: str
    """Name in the tables."""
    value: float | Mapping[str, float]
    signature: str

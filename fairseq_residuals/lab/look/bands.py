"""Gradient norms of layers that are out of order: over time, or on the way down a stack."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from fairseq_residuals.lab.utils.tables import show

BAND = 10.0
"""A layer's gradient norm is out of its band at this factor above or below the median of those before."""
MEMORY = 10
"""How many norms, in band, that median is taken of; at least three."""
VANISHING = 1e-2
"""Of the top layer's gradient norm; below it the bottom layer hardly learns."""


def ends_out_of_band(curve: Mapping[int, float]) -> tuple[int, str] | None:
    """Return since which update the norm has been out of its band, and how; None where it ends inside."""
    memory: list[float] = []
    since: tuple[int, str] | None = None
    for update, value in curve.items():
        middle = statistics.median(memory) if len(memory) >= 3 else None
        if not math.isfinite(value):
            since = since or (update, "was no longer a number")
        elif middle is not None and value > BAND * middle:
            since = since or (update, f"exploded to {value / middle:.0f} times the median of those before")
        elif middle is not None and value * BAND < middle:
            times = f"{middle / value:.0f} times less than" if value else "zero, from"
            since = since or (update, f"collapsed to {times} the median of those before")
        else:
            since = None
            memory = [*memory, value][-MEMORY:]
    return since


def vanishing_sentence(stack: str, norms: Sequence[float]) -> str:
    """Say that gradients vanish on their way down a stack; empty where they do not.

    Args:
        norms: of the layers' gradients, from the bottom.
    """
    if len(norms) < 2 or not all(map(math.isfinite, norms)) or norms[0] >= VANISHING * norms[-1]:
        return ""
    if not norms[0]:
        return f"no gradient at all reached the bottom of the {stack}"
    per_layer = (norms[0] / norms[-1]) ** (1 / (len(norms) - 1))
    return (
        f"gradients vanished in the {stack}: from {show(norms[-1])} in layer {len(norms)} to {show(norms[0])} in"
        f" layer 1, by a factor of {per_layer:.2f} per layer"
    )

"""Rows of a product in which each value of each axis occurs, for axes that do not act on each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def rotated(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return as many rows as the longest axis has values; the shorter ones begin again where they end."""
    return [tuple(axis[i % len(axis)] for axis in axes) for i in range(max(map(len, axes)))]

"""Fewer rows than a product has, for axes that do not act on each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def rotated(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return as many rows as the longest axis has values; the shorter ones begin again where they end."""
    return [tuple(axis[i % len(axis)] for axis in axes) for i in range(max(map(len, axes)))]


SHAPES_OF_CODE = (
    *("post_ln", "admin", "attention_residuals", "depthwise_lstm", "dlcl_pre", "hyper_connections", "mhc_lite", "mudd"),
    *("ode_rk2", "parallel", "realformer", "resi_dual", "scmoe", "sub_ln", "two_lane", "unet_skip"),
)
"""A wiring of each shape of code, for a feature that knows wirings by what all of them have in common.

One stream or several, with or without a history, cells, buffers, branches side by side, hooks in sub-layers, layers in
pairs; the contract of a wiring is tested for all of them.
"""

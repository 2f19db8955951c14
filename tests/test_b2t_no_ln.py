"""Norm-free B2T: a deep and narrow stack overflows, which is said where it is built."""

from __future__ import annotations

import logging

import pytest

from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.registry import VARIANTS


@pytest.mark.parametrize(
    ("depth", "dim", "warns"), [(30, 16, True), (100, 32, True), (18, 16, False), (100, 64, False)]
)
def test_the_warning(depth: int, dim: int, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    variant = VARIANTS["b2t_no_ln"]
    with caplog.at_level(logging.WARNING):
        variant(variant.Config(), StackShape("encoder", depth, dim, 4 * dim, 2, depth, depth, True))
    assert ("may overflow to nan" in caplog.text) is warns

"""Delta Attention Residuals: Pre-LN at the start, but in blocks."""

from __future__ import annotations

from torch import Tensor, nn
from wired_sublayers import assert_close, wired


def start(name: str, args: str = "") -> list[Tensor]:
    """With the values of Pre-LN, and queries of 0."""
    outputs = []
    for one in wired(name, args, layers=4, eps=1e-14, like="pre_ln"):
        for connection, _ in one.sublayers():
            if getattr(connection, "over_depth", None) is not None:
                nn.init.zeros_(connection.over_depth.query)
        outputs.append(one.output())
    return outputs


def test_starts_as_pre_ln_unless_in_blocks() -> None:
    for out, expected in zip(start("delta_attnres"), start("pre_ln"), strict=True):
        assert_close(out, expected)
    for out, expected in zip(start("delta_attnres", "block=1"), start("pre_ln"), strict=True):
        assert (out - expected).abs().max() > 0.1

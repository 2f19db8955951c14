"""Figures of what analyses return."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_residuals import UserError, build_stack, contributions, plot
from fairseq_residuals.lab.look.condition import Adam, condition_numbers


def drawn(figure: Any) -> list[Any]:
    assert figure._repr_png_().startswith(b"\x89PNG")
    return figure.axes  # type: ignore[no-any-return]


def test_numbers_by_layer() -> None:
    below, above = drawn(plot({"encoder": [1.0, 2.0], "decoder": [0.0, 3.0, 4.0]}, "gradient norm"))
    assert below.lines[0].get_xydata().tolist() == [[1, 1], [2, 2]] and below.get_yscale() == "log"
    assert above.lines[0].get_ydata().tolist() == [0, 3, 4] and above.get_yscale() == "linear"
    assert (above.get_title(), above.get_ylabel(), above.get_xlabel()) == ("decoder", "gradient norm", "layer")


def test_numbers_alone() -> None:
    numbers = condition_numbers(Adam(), 1e-8, 5, 1)
    (panel,) = drawn(plot(numbers))
    assert panel.lines[0].get_ydata().tolist() == numbers


def test_a_matrix() -> None:
    matrix = torch.tensor([[1.0, -0.5], [-0.5, 1.0]])
    panel, _ = drawn(plot({"encoder": matrix}))
    assert panel.images[0].get_array().tolist() == matrix.tolist()
    assert panel.images[0].get_clim() == (-0.5, 1.0)


def test_contributions() -> None:
    stack = build_stack("b2t", depth=2, dim=16, heads=2, ffn_dim=32).eval()
    found = contributions(stack, torch.randn(5, 3, 16))
    (panel,) = drawn(plot(found))
    assert [label.get_text() for label in panel.get_yticklabels()] == found.names
    assert [bar.get_width() for bar in panel.patches] == pytest.approx(list(found.sizes().values()))


@pytest.mark.parametrize("result", ["text", {}, [], {"encoder": []}, torch.ones(2, 2, 2), {"encoder": ["a"]}, None])
def test_something_else_is_refused(result: Any) -> None:
    with pytest.raises(UserError, match="plot draws Contributions, numbers for each layer or matrices"):
        plot(result)


def test_the_first_picture_on_a_machine_prints_nothing(tmp_path: Path) -> None:
    """Where logging is set up as fairseq does it: matplotlib lists the fonts when it is imported."""
    program = """
import logging
logging.basicConfig(level="INFO")
from fairseq_residuals.lab.look.plots import new_figure
new_figure()
"""
    environment = os.environ | {"MPLCONFIGDIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment)
    assert (ran.returncode, ran.stderr) == (0, b"") and list(tmp_path.glob("fontlist*"))

"""A figure of what an analysis returned, for a notebook."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.contributions import Contributions
from fairseq_residuals.wirings.core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(result: Any, label: str = "") -> Figure:
    """Draw what an analysis returned; a notebook shows the figure, and ``savefig`` writes it.

    Args:
        result: of ``gradients``, ``similarity``, ``contributions`` or ``condition``: numbers or a matrix, by stack or
            alone, or :class:`.Contributions`.
        label: of the axis of the numbers, or of the colours.

    Raises:
        UserError: it is something else.
    """
    if isinstance(result, Contributions):
        return _bars(result.sizes(), label or "root mean square of the term")
    by_stack = result if isinstance(result, Mapping) else {"": result}
    try:
        values = {str(name): torch.as_tensor(value, dtype=torch.float64) for name, value in by_stack.items()}
    except (TypeError, ValueError, RuntimeError):
        values = {}
    dims = {value.dim() for value in values.values()}
    if dims not in ({1}, {2}):
        raise UserError(
            "plot draws Contributions, numbers for each layer or matrices of layers, by stack or alone, not"
            f" {result!s:.80}"
        )
    figure, axes = plots.new_figure(1, len(values), width=plots.COLUMN * len(values))
    for panel, (name, value) in zip(axes[0], values.items(), strict=True):
        if dims == {2}:
            lowest, highest = float(value.min()), float(value.max())
            image = plots.heat_map(panel, value.tolist(), min(lowest, 0.0), max(highest, 1.0))
            plots.colour_bar(figure, image, panel, label)
            panel.set_title(name, fontsize=8)
            continue
        panel.plot(range(1, len(value) + 1), value.tolist(), **plots.sequence_styles(1)[0])
        if float(value.min()) > 0:
            panel.set_yscale("log")
        plots.finish(panel, "layer" if name else "", label, name, whole_x=True)
    return shown(figure)


def _bars(sizes: Mapping[str, float], label: str) -> Figure:
    names: Sequence[str] = list(sizes)
    figure, axes = plots.new_figure(height=0.8 + 0.15 * len(names))
    axes[0][0].barh(names, list(sizes.values()), color=plots.BLUE)
    axes[0][0].invert_yaxis()
    plots.finish(axes[0][0], label)
    return shown(figure)


def shown(figure: Any) -> Figure:
    """Return a figure that notebooks show where nothing has set up matplotlib for them."""

    def png() -> bytes:
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()

    figure._repr_png_ = png
    return figure  # type: ignore[no-any-return]

"""One style for every picture, and figures of what an analysis returned, for a notebook.

A picture is as wide as a column of a paper, colour-blind readers can tell its colours apart, and each wiring has the
same style in all of them.
"""

from __future__ import annotations

import io
import logging
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from fairseq_residuals.lab.look.contributions import Contributions
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import list_variants

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.3
"""Width of a paper's column in inches; a figure over two columns has twice that and the gap between them."""
PAGE = 6.9

# Okabe and Ito's colours; the papers' three variants have the solid lines that differ most
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
VERMILION, BLUE, GREEN, PINK, ORANGE, SKY, GREY = COLOURS
SOLID, DASHED, DASHDOT, DOTTED = "-", (0, (4, 1.5)), (0, (5, 1, 1, 1)), (0, (1, 1))
LONG, TWO_DOTS = (0, (9, 2)), (0, (5, 1, 1, 1, 1, 1))
SHORT, TWO_LENGTHS, SPARSE = (0, (2, 1)), (0, (7, 1, 2, 1)), (0, (1, 3))
STYLES: dict[str, tuple[str, Any]] = {
    "post_ln": (VERMILION, SOLID),
    "pre_ln": (BLUE, SOLID),
    "b2t": (GREEN, SOLID),
    "resi_dual": (PINK, DASHED),
    "deepnet": (ORANGE, SOLID),
    "dlcl_pre": (SKY, SOLID),
    "depthwise_lstm": (GREY, SOLID),
}
MARKERS = ("", "o", "s", "^", "D", "v")


def style(wiring: str) -> tuple[str, Any]:
    """Return colour and dashes of a wiring (or of a list of them), the same in every picture."""
    if wiring in STYLES:
        return STYLES[wiring]
    dashes = (DASHED, DASHDOT, DOTTED, LONG, TWO_DOTS, SHORT, TWO_LENGTHS, SPARSE)
    free = [(colour, dash) for dash, colour in product(dashes, COLOURS) if (colour, dash) not in STYLES.values()]
    newer = [name for name in list_variants() if name not in STYLES]
    place = newer.index(wiring) if wiring in newer else zlib.crc32(wiring.encode())
    return free[place % len(free)]


def line_styles(wirings: Iterable[str]) -> list[dict[str, Any]]:
    """Return keyword arguments of ``Axes.plot`` for lines of these wirings; where one comes again, it has markers."""
    found: list[dict[str, Any]] = []
    count: dict[str, int] = {}
    for wiring in wirings:
        colour, dashes = style(wiring)
        marker = MARKERS[count.get(wiring, 0) % len(MARKERS)]
        count[wiring] = count.get(wiring, 0) + 1
        line = {"color": colour, "linestyle": dashes, "marker": marker}
        found.append(line | {"markersize": 2.5, "linewidth": 1.2, "markevery": 0.2})
    return found


def new_figure(rows: int = 1, columns: int = 1, width: float = COLUMN, height: float = 2.3, **kwargs: Any) -> Any:
    """Return a figure and its axes, an array (rows, columns); lengths in inches.

    Args:
        kwargs: of ``Figure.subplots``, such as ``sharey=True``.
    """
    # its first import on a machine tells of fonts
    logging.getLogger("matplotlib.font_manager").setLevel(logging.WARNING)
    from matplotlib.figure import Figure  # half a second, which commands without a picture need not wait

    figure = Figure(figsize=(width, height), dpi=300, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def new_panels(number: int, columns: int, width: float, row: float, margin: float = 0.0, **kwargs: Any) -> Any:
    """Return a figure and ``number`` axes in rows of at most ``columns``, whose places without one stay empty.

    Args:
        row, margin: height of a row, and what is added for all of them.
        kwargs: as for :func:`new_figure`.
    """
    columns = min(columns, number)
    rows = math.ceil(number / columns)
    figure, axes = new_figure(rows, columns, width, margin + row * rows, **kwargs)
    for empty in axes.flat[number:]:
        empty.set_axis_off()
    return figure, axes.flat[:number]


def finish(axes: Axes, x: str = "", y: str = "", title: str = "", whole_x: bool = False) -> None:
    """Label axes with their units, and give them their looks."""
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    if title:
        axes.set_title(title, fontsize=8)
    if whole_x:
        axes.locator_params("x", integer=True, nbins=6)
    axes.tick_params(labelsize=7, width=0.6)
    axes.tick_params(which="minor", labelsize=6, width=0.4)
    axes.grid(color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_linewidth(0.6)


def legend(figure: Figure, axes: Axes, colour: str | None = None) -> None:
    """Put the legend above the axes, where it hides nothing, in as many columns as fit.

    Args:
        colour: of all lines in it, where colours tell something else.
    """
    handles, labels = axes.get_legend_handles_labels()
    widest = 0.3 + 0.052 * max(map(len, labels), default=0)
    columns = max(1, min(len(labels), int(figure.get_figwidth() / widest)))
    options = {"fontsize": 7, "frameon": False, "handlelength": 1.6, "columnspacing": 1.0, "handletextpad": 0.5}
    made = figure.legend(handles, labels, loc="outside upper center", ncols=columns, **options)
    if colour:
        for line in made.get_lines():
            line.set_color(colour)


def heat_map(
    axes: Axes,
    values: Sequence[Sequence[float]],
    low: float,
    high: float,
    diverging: bool = False,
    first: tuple[int, int] = (1, 1),
) -> Any:
    """Draw a matrix, its first row at the bottom, and return what a colour bar needs; entries that are nan stay white.

    Args:
        diverging: colours that tell negative from positive.
        first: numbers of the first column and the first row.
    """
    left, bottom = first[0] - 0.5, first[1] - 0.5
    size = (len(values[0]), len(values))
    image = axes.imshow(
        values,
        origin="lower",
        cmap="PuOr_r" if diverging else "cividis",
        vmin=low,
        vmax=high,
        interpolation="nearest",
        extent=(left, left + size[0], bottom, bottom + size[1]),
        aspect="auto",
    )
    axes.tick_params(labelsize=7, width=0.6, length=2)
    axes.locator_params("both", integer=True, nbins=6)
    for spine in axes.spines.values():
        spine.set_linewidth(0.6)
    return image


def colour_bar(figure: Figure, image: Any, axes: Any, label: str) -> None:
    """Draw a colour bar at the right of ``axes``, one or an array of them."""
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label(label, fontsize=7)
    bar.ax.tick_params(labelsize=6, width=0.6, length=2)
    bar.outline.set_linewidth(0.6)


def sequence_styles(number: int) -> list[dict[str, Any]]:
    """Return lines for the values of a quantity, from dark to light; as :func:`line_styles`."""
    from matplotlib import colormaps

    shades = colormaps["viridis"]
    dashes = (SOLID, DASHED, DASHDOT, DOTTED)
    return [
        {"color": shades(0.85 * i / max(number - 1, 1)), "linestyle": dashes[i % 4], "linewidth": 1.2}
        for i in range(number)
    ]


def plot(result: Any, label: str = "") -> Figure:
    """Draw what an analysis returned; a notebook shows the figure, and ``savefig`` writes it.

    Args:
        result: of ``parameter_gradients``, ``similarity``, ``change`` or ``condition_numbers``: numbers or a matrix,
            by stack or alone; or :class:`.Contributions`.
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
    if dims not in ({1}, {2}) or not all(value.numel() for value in values.values()):
        raise UserError(
            "plot draws Contributions, numbers for each layer or matrices of layers, by stack or alone, not"
            f" {result!s:.80}"
        )
    figure, axes = new_figure(1, len(values), width=COLUMN * len(values))
    for panel, (name, value) in zip(axes[0], values.items(), strict=True):
        if dims == {2}:
            lowest, highest = float(value.min()), float(value.max())
            image = heat_map(panel, value.tolist(), min(lowest, 0.0), max(highest, 1.0))
            colour_bar(figure, image, panel, label)
            panel.set_title(name, fontsize=8)
            continue
        panel.plot(range(1, len(value) + 1), value.tolist(), **sequence_styles(1)[0])
        if float(value.min()) > 0:
            panel.set_yscale("log")
        finish(panel, "layer" if name else "", label, name, whole_x=True)
    return shown(figure)


def _bars(sizes: Mapping[str, float], label: str) -> Figure:
    names: Sequence[str] = list(sizes)
    figure, axes = new_figure(height=0.8 + 0.15 * len(names))
    axes[0][0].barh(names, list(sizes.values()), color=BLUE)
    axes[0][0].invert_yaxis()
    finish(axes[0][0], label)
    return shown(figure)


def shown(figure: Any) -> Figure:
    """Return a figure that notebooks show where nothing has set up matplotlib for them."""

    def png() -> bytes:
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()

    figure._repr_png_ = png
    return figure  # type: ignore[no-any-return]

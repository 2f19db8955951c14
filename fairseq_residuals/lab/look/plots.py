"""One style for every picture.

A picture is as wide as a column of a paper, colour-blind readers can tell its colours apart, and each wiring has the
same style in all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

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
BLACK = "#000000"
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
    "stock": (BLACK, DASHED),
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
        found.append(
            {
                "color": colour,
                "linestyle": dashes,
                "marker": marker,
                "markersize": 2.5,
                "linewidth": 1.2,
                "markevery": 0.2,
            }
        )
    return found


def new_figure(rows: int = 1, columns: int = 1, width: float = COLUMN, height: float = 2.3, **kwargs: Any) -> Any:
    """Return a figure and its axes, an array (rows, columns); lengths in inches.

    Args:
        kwargs: of ``Figure.subplots``, such as ``sharey=True``.
    """
    from matplotlib.figure import Figure  # half a second, which commands without a picture need not wait

    figure = Figure(figsize=(width, height), dpi=300, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


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

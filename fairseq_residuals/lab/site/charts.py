"""Line charts and the family tree of wirings as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Series = Sequence[tuple[float, float]]
WIDTH, HEIGHT, LEFT, BELOW, RIGHT = 340, 220, 46, 36, 8
LOOKS = ("this", "first", "second", "third")
"""Classes of lines: the wiring at hand, then those that it is compared with."""


def chart(title: str, across: str, up: str, series: Mapping[str, Series], *, log: bool = False) -> str:
    """Return lines over a common axis.

    Args:
        across, up: what the axes show.
        series: points (x, y) by label; the first is drawn boldest.
        log: whether the axis that goes up is logarithmic; what is not positive is left out.
    """
    scale = math.log10 if log else float
    lines = {label: [(x, scale(y)) for x, y in points if not log or y > 0] for label, points in series.items()}
    points = [point for line in lines.values() for point in line]
    (left, right), (low, high) = ((min(v), max(v)) for v in zip(*points, strict=True))
    low, high = (math.floor(low), math.ceil(high)) if log else (min(low, 0.0), high * 1.05)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - left) / ((right - left) or 1) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BELOW - (y - low) / ((high - low) or 1) * (HEIGHT - BELOW - 14),
        )

    drawn = []
    ticks = range(int(low), int(high) + 1) if log else [low + (high - low) * i / 4 for i in range(5)]
    for tick in ticks:
        _, y = place(left, tick)
        text = f"10<tspan dy='-4'>{tick}</tspan>" if log else f"{tick:.3g}"
        drawn.append(f'<path class="grid" d="M{LEFT} {y:.1f} H{WIDTH - RIGHT}"/>')
        drawn.append(f'<text class="tick up" x="{LEFT - 5}" y="{y + 4:.1f}">{text}</text>')
    for tick in (left, (left + right) / 2, right):
        x, _ = place(tick, low)
        drawn.append(f'<text class="tick" x="{min(x, WIDTH - 14):.1f}" y="{HEIGHT - 21}">{tick:.5g}</text>')
    for look, (_, line) in reversed(list(zip(LOOKS, lines.items(), strict=False))):
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*point) for point in line))
        drawn.append(f'<path class="curve {look}" d="M{path}"/>' if line else "")
    key = " ".join(
        f'<span class="key {look}">{escape(label)}</span>' for look, label in zip(LOOKS, lines, strict=False)
    )
    drawn.append(f'<text class="tick" x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 4}">{escape(across)}</text>')
    return (
        f'<figure class="chart"><figcaption>{escape(title)} <small>({escape(up)})</small></figcaption>'
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(drawn)}</svg>'
        f'<div class="keys">{key}</div></figure>'
    )


def tree(parents: Mapping[str, Sequence[str]], years: Mapping[str, int], titles: Mapping[str, str]) -> str:
    """Return all wirings, each right of and below the one that it came from, with links to their pages.

    Args:
        parents: the wirings that a wiring came from; below the first of these it is drawn.
        years, titles: of the wirings.
    """
    order: list[str] = []

    def visit(name: str) -> None:
        order.append(name)
        children = (child for child in parents if parents[child][:1] == [name])
        for child in sorted(children, key=lambda n: (years[n], n)):
            visit(child)

    for root in (name for name in parents if not parents[name]):
        visit(root)
    first, last = min(years.values()), max(years.values())
    at = {name: (30 + 90 * (years[name] - first), 40 + 21 * row) for row, name in enumerate(order)}
    height, width = 50 + 21 * len(order), 30 + 90 * (last - first) + 190
    drawn = [
        f'<text class="year" x="{30 + 90 * (year - first)}" y="16">{year}</text>'
        f'<path class="grid" d="M{30 + 90 * (year - first)} 24 V{height}"/>'
        for year in range(first, last + 1)
    ]
    for name, (x, y) in at.items():
        for number, parent in enumerate(parents[name]):
            from_x, from_y = at[parent]
            if not number:
                drawn.append(f'<path class="descent" d="M{from_x} {from_y} V{y} H{x}"/>')
            else:
                drawn.append(f'<path class="descent other" d="M{from_x} {from_y} L{x} {y}"/>')
    for name, (x, y) in at.items():
        drawn.append(f'<circle cx="{x}" cy="{y}" r="4"/>')
        drawn.append(f'<a href="wiring/{name}.html"><text x="{x + 8}" y="{y + 4}">{escape(titles[name])}</text></a>')
    size = f'width="{width}" height="{height}"'
    return f'<svg class="tree" role="img" aria-label="Family tree" {size}>{"".join(drawn)}</svg>'

"""Plots as SVG text without external files: lines over a few known places, and ranges.

Every mark has its number in `data-` attributes and in a tooltip, for readers, screen readers and tests. Lengths are in
units of the view box, which is WIDTH wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 380, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 12, 36
ROW = 26
FOOT = 22
LABELS = 112
"""Room for the names of the rows of a range plot."""

TICKS = 5

STYLES = 6
"""Colours of page.css; further series repeat them."""


@dataclass(frozen=True)
class Series:
    """A line: its name, the number of its style in the page's colours, and its points."""

    name: str
    style: int
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Range:
    """A row of a range plot: a bar from `low` to `high`, a box between the quarters, a stroke at the median.

    Rows of one `group` have one `style`.
    """

    name: str
    group: str
    style: int
    low: float
    p25: float
    p50: float
    p75: float
    high: float


@dataclass(frozen=True)
class Axis:
    """Values from 0 to `steps` times `step`, laid out from pixel `start` to pixel `end`."""

    step: float
    steps: int
    start: float
    end: float

    @property
    def top(self) -> float:
        """The highest value."""
        return self.step * self.steps

    def place(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (self.end - self.start) * value / self.top

    def ticks(self) -> list[float]:
        """Round numbers from 0 to the top."""
        return [self.step * number for number in range(self.steps + 1)]


def round_step(highest: float) -> float:
    """1, 2 or 5 times a power of ten, of which about TICKS make up `highest`."""
    rough = highest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)


def axis(highest: float, start: float, end: float) -> Axis:
    """An axis that holds `highest` and ends at a round number."""
    step = round_step(highest or 1.0)
    # a hair above a round number is drawn as that number
    return Axis(step, math.ceil((highest or 1.0) / step - 1e-9), start, end)


def number(value: float) -> str:
    """A figure with three significant digits, without an exponent."""
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def lines(
    title: str, places: str, unit: str, series: Sequence[Series], *, reference: float | None = None, top: float = 0.0
) -> str:
    """A line for each series over the places of all series, evenly spaced; `reference` is a level for comparison.

    `places` names the horizontal axis, `unit` the vertical one, which goes at least to `top`.
    """
    known = sorted({place for one in series for place, _ in one.points})
    highest = max([top, reference or 0.0, *(value for one in series for _, value in one.points)])
    vertical = axis(highest, HEIGHT - BOTTOM, TOP)
    room = WIDTH - LEFT - RIGHT
    across = {place: LEFT + room * (index + 0.5) / len(known) for index, place in enumerate(known)}
    drawn = [*_horizontal_grid(vertical), *_places(places, across)]
    if reference is not None:
        level = vertical.place(reference)
        drawn.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{level:.2f}" y2="{level:.2f}"/>')
    for one in series:
        drawn += _line(one, places, unit, across, vertical)
    return _figure(title, unit, [(one.name, one.style) for one in series], HEIGHT, drawn)


def _line(one: Series, places: str, unit: str, across: dict[int, float], vertical: Axis) -> Iterator[str]:
    dots = [(across[place], vertical.place(value), place, value) for place, value in one.points]
    path = " ".join(f"{x:.2f},{y:.2f}" for x, y, _, _ in dots)
    yield f'<polyline class="line s{one.style % STYLES}" points="{path}"/>'
    for x, y, place, value in dots:
        said = escape(f"{one.name}, {places} {place}: {number(value)} {unit}", quote=True)
        data = f'data-series="{escape(one.name, quote=True)}" data-x="{place}" data-y="{value!r}"'
        dot = f'<circle class="dot s{one.style % STYLES}" cx="{x:.2f}" cy="{y:.2f}" r="4" {data}>'
        yield f"{dot}<title>{said}</title></circle>"


def ranges(title: str, unit: str, rows: Sequence[Range]) -> str:
    """A row for each range, the first on top."""
    height = TOP + ROW * len(rows) + FOOT
    horizontal = axis(max(row.high for row in rows), LABELS, WIDTH - RIGHT)
    drawn = list(_vertical_grid(horizontal, height))
    for index, row in enumerate(rows):
        drawn += _range(row, unit, TOP + ROW * (index + 0.5), horizontal)
    styles = dict.fromkeys((row.group, row.style) for row in rows)
    return _figure(title, unit, list(styles), height, drawn)


def _range(row: Range, unit: str, middle: float, horizontal: Axis) -> Iterator[str]:
    name = f"{row.name}, {row.group}"
    low, p25, p50, p75, high = map(horizontal.place, (row.low, row.p25, row.p50, row.p75, row.high))
    parts = (("least", row.low), ("a quarter below", row.p25), ("median", row.p50), ("a quarter above", row.p75))
    said = "; ".join(f"{part} {number(value)}" for part, value in (*parts, ("99 % below", row.high)))
    data = f'data-series="{escape(name, quote=True)}" data-p50="{row.p50!r}" data-high="{row.high!r}"'
    yield f'<text class="t" x="{LABELS - 8}" y="{middle + 4:.2f}" text-anchor="end">{escape(name)}</text>'
    yield f'<g class="range s{row.style % STYLES}" {data}><title>{escape(f"{name}: {said} {unit}")}</title>'
    yield f'<line class="whisker" x1="{low:.2f}" x2="{high:.2f}" y1="{middle:.2f}" y2="{middle:.2f}"/>'
    width = max(p75 - p25, 1.0)
    yield f'<rect class="box" x="{p25:.2f}" y="{middle - 7:.2f}" width="{width:.2f}" height="14" rx="2"/>'
    yield f'<line class="median" x1="{p50:.2f}" x2="{p50:.2f}" y1="{middle - 9:.2f}" y2="{middle + 9:.2f}"/></g>'


def _horizontal_grid(vertical: Axis) -> Iterator[str]:
    for tick in vertical.ticks():
        y = vertical.place(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.2f}" y2="{y:.2f}"/>'
        yield f'<text class="t" x="{LEFT - 6}" y="{y + 4:.2f}" text-anchor="end">{number(tick)}</text>'


def _vertical_grid(horizontal: Axis, height: float) -> Iterator[str]:
    for tick in horizontal.ticks():
        x = horizontal.place(tick)
        yield f'<line class="grid" x1="{x:.2f}" x2="{x:.2f}" y1="{TOP}" y2="{height - FOOT}"/>'
        yield f'<text class="t" x="{x:.2f}" y="{height - FOOT + 16}" text-anchor="middle">{number(tick)}</text>'


def _places(name: str, across: dict[int, float]) -> Iterator[str]:
    for place, x in across.items():
        yield f'<text class="t" x="{x:.2f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{place}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text class="t" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(name)}</text>'


def _figure(title: str, unit: str, legend: Sequence[tuple[str, int]], height: float, drawn: Sequence[str]) -> str:
    """The drawing below its title and the names of its colours, which are text that wraps."""
    names = "".join(f'<li class="s{style % STYLES}"><i></i>{escape(name)}</li>' for name, style in legend)
    label = escape(f"{title}, {unit}", quote=True)
    caption = f"<figcaption><b>{escape(title)}</b> <span>{escape(unit)}</span></figcaption>"
    return (
        f'<figure>{caption}<ul class="legend">{names}</ul>'
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{label}; the table has the figures">'
        f"{''.join(drawn)}</svg></figure>"
    )

"""The report of a benchmark as one HTML file, with plots as SVG text.

The file has no scripts and no external files, and is light or dark as the reader's system. Plots are lines over a few
known places, and ranges. Every mark has its number in `data-` attributes and in a tooltip, for readers, screen readers
and tests. Lengths are in units of the view box, which is WIDTH wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from dflash_deploy.bench.figures import DRAFTER, PARTS, Speculation, at_concurrency, speculation_of

WIDTH, HEIGHT = 380, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 12, 36
ROW = 26
FOOT = 22
LABELS = 112
"""Room for the names of the rows of a range plot."""

TICKS = 5

COLOURS = 6
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
    yield f'<polyline class="line s{one.style % COLOURS}" points="{path}"/>'
    for x, y, place, value in dots:
        said = escape(f"{one.name}, {places} {place}: {number(value)} {unit}", quote=True)
        data = f'data-series="{escape(one.name, quote=True)}" data-x="{place}" data-y="{value!r}"'
        dot = f'<circle class="dot s{one.style % COLOURS}" cx="{x:.2f}" cy="{y:.2f}" r="4" {data}>'
        yield f"{dot}<title>{said}</title></circle>"


def ranges(title: str, unit: str, rows: Sequence[Range]) -> str:
    """A row for each range, the first on top."""
    height = TOP + ROW * len(rows) + FOOT
    horizontal = axis(max(row.high for row in rows), LABELS, WIDTH - RIGHT)
    drawn = list(_vertical_grid(horizontal, height))
    for index, row in enumerate(rows):
        drawn += _drawn_range(row, unit, TOP + ROW * (index + 0.5), horizontal)
    styles = dict.fromkeys((row.group, row.style) for row in rows)
    return _figure(title, unit, list(styles), height, drawn)


def _drawn_range(row: Range, unit: str, middle: float, horizontal: Axis) -> Iterator[str]:
    name = f"{row.name}, {row.group}"
    low, p25, p50, p75, high = map(horizontal.place, (row.low, row.p25, row.p50, row.p75, row.high))
    parts = (("least", row.low), ("a quarter below", row.p25), ("median", row.p50), ("a quarter above", row.p75))
    said = "; ".join(f"{part} {number(value)}" for part, value in (*parts, ("99 % below", row.high)))
    data = f'data-series="{escape(name, quote=True)}" data-p50="{row.p50!r}" data-high="{row.high!r}"'
    yield f'<text class="t" x="{LABELS - 8}" y="{middle + 4:.2f}" text-anchor="end">{escape(name)}</text>'
    yield f'<g class="range s{row.style % COLOURS}" {data}><title>{escape(f"{name}: {said} {unit}")}</title>'
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
    names = "".join(f'<li class="s{style % COLOURS}"><i></i>{escape(name)}</li>' for name, style in legend)
    label = escape(f"{title}, {unit}", quote=True)
    caption = f"<figcaption><b>{escape(title)}</b> <span>{escape(unit)}</span></figcaption>"
    return (
        f'<figure>{caption}<ul class="legend">{names}</ul>'
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{label}; the table has the figures">'
        f"{''.join(drawn)}</svg></figure>"
    )


Rows = Sequence[Mapping[str, Any]]

STYLES: Mapping[Speculation, int] = {"dflash": 0, "off": 1, "mtp": 2, "unknown": 0}
"""The style of each part of a comparison in the plots."""


def page(data: Mapping[str, Any]) -> str:
    """The report of the `data` of `bench --json`, which has all its figures."""
    title = f"{data['measured']['model']}: speed as measured"
    body = "".join(
        (
            f"<p>{escape(_of(data['measured']))}</p>",
            *(f'<p class="lead">{escape(line)}</p>' for line in headlines(data["rows"])),
            *_together(data["rows"]),
            *_each_workload(data),
            *_all_figures(data["rows"]),
            *_published(data.get("published", ())),
            _how(data["measured"]),
        )
    )
    return html_page(title, body)


def html_page(title: str, body: str) -> str:
    """A whole HTML file with a title and a body of HTML, in the style of the report."""
    style = (resources.files("dflash_deploy.bench") / "page.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{style}</style></head>'
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def headlines(rows: Rows) -> Iterator[str]:
    """For each workload the speed-up at the lowest and highest concurrency, or the speed of the only part."""
    for workload in _names(rows):
        mine = [row for row in rows if row["workload"] == workload]
        drafted = [row for row in mine if row["drafter"]]
        shown = [row for row in drafted if speculation_of(row) == "dflash"] or drafted or mine
        first, last = shown[0], shown[-1]
        said = "; ".join(_headline(row) for row in ((first, last) if last is not first else (first,)))
        yield f"{workload}: {said}."


def _headline(row: Mapping[str, Any]) -> str:
    gain = f", {row['speedup']:.2f} times the speed without" if row["speedup"] else ""
    made = PARTS[speculation_of(row)]
    return f"{number(row['tokens_per_s'])} tokens/s at {at_concurrency(row['concurrency'])} {made}{gain}"


def _of(measured: Mapping[str, Any]) -> str:
    named = ("profile", "pair", "engine", "runtime")
    parts = [f"{name} {measured[name]}" for name in named if measured.get(name)]
    return ", ".join([*parts, f"measured {measured['at']} by dflash-deploy {measured['version']}"])


def _together(rows: Rows) -> Iterator[str]:
    """Plots that compare workloads: the speed-up, and acceptance by position."""
    drawn = []
    sped = _by_workload([row for row in rows if row["speedup"]], "speedup")
    if sped:
        drawn.append(lines("Speed-up by speculative decoding", "concurrency", "times", sped, reference=1.0))
    accepted = [
        Series(
            f"{_named(row)}, length {row['acceptance_length']:.2f}",
            style,
            tuple((place, 100 * share) for place, share in enumerate(row["acceptance_by_position"], 1)),
        )
        for style, row in enumerate(_lowest_concurrency(rows))
    ]
    if accepted:
        title = "Drafts accepted up to each position"
        drawn.append(lines(title, "draft position", "% of drafts", accepted, top=100.0))
    if drawn:
        yield f'<section><h2>The drafter</h2><div class="plots">{"".join(drawn)}</div></section>'


def _lowest_concurrency(rows: Rows) -> list[Mapping[str, Any]]:
    """The first drafted row of each workload, by drafter and by MTP head."""
    drafted = [row for row in rows if row["acceptance_by_position"]]
    return list({_named(row): row for row in reversed(drafted)}.values())[::-1]


def _by_workload(rows: Rows, field: str) -> list[Series]:
    return [
        Series(name, style, tuple((row["concurrency"], row[field]) for row in rows if _named(row) == name))
        for style, name in enumerate(dict.fromkeys(map(_named, rows)))
    ]


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['workload']}, MTP" if speculation_of(row) == "mtp" else str(row["workload"])


def _each_workload(data: Mapping[str, Any]) -> Iterator[str]:
    sources = {one["name"]: one["source"] for one in data["workloads"]}
    for workload in _names(data["rows"]):
        mine = [row for row in data["rows"] if row["workload"] == workload and row["requests"]]
        if not mine:
            continue
        parts = [Series(PARTS[kind], style, tuple(_rates(mine, kind))) for kind, style in STYLES.items()]
        drawn = [lines("Throughput", "concurrency", "tokens/s", [one for one in parts if one.points])]
        for title, field in (
            ("Time to the first token", "ttft_ms"),
            ("Time for each further token", "tpot_ms"),
            ("Time between chunks", "itl_ms"),
        ):
            spreads = [_range(row, row[field]) for row in mine if row[field]]
            if spreads:
                drawn.append(ranges(title, "ms", spreads))
        yield (
            f"<section><h2>{escape(workload)}</h2><p>{escape(sources.get(workload, ''))}</p>"
            f'<div class="plots">{"".join(drawn)}</div></section>'
        )


def _range(row: Mapping[str, Any], times: Mapping[str, float]) -> Range:
    kind = speculation_of(row)
    low, p25, p50, p75, high = (times[name] for name in ("min", "p25", "p50", "p75", "p99"))
    return Range(str(row["concurrency"]), PARTS[kind], STYLES[kind], low, p25, p50, p75, high)


def _rates(rows: Rows, kind: Speculation) -> Iterator[tuple[int, float]]:
    return ((row["concurrency"], row["tokens_per_s"]) for row in rows if speculation_of(row) == kind)


COLUMNS = (
    "workload", "concurrency", "draft tokens", "tokens/s", "speed-up", "req/s", "TTFT p50", "p99", "TPOT p50", "p99",
    "ITL mean", "p50", "p99", "length", "requests", "failed",
)  # fmt: skip


def _all_figures(rows: Rows) -> Iterator[str]:
    yield "<section><h2>All figures</h2><p>Times in milliseconds; length is the mean acceptance length.</p>"
    yield table("All figures", COLUMNS, [_cells(row) for row in rows])
    yield "</section>"


def _cells(row: Mapping[str, Any]) -> list[str]:
    def times(field: str, *names: str) -> list[str]:
        return [number(row[field][name]) if row[field] else "" for name in names]

    length = row["acceptance_length"]
    return [
        row["workload"],
        str(row["concurrency"]),
        _drafter(row),
        number(row["tokens_per_s"]),
        f"{row['speedup']:.2f}" if row["speedup"] else "",
        f"{row['requests_per_s']:.2f}",
        *times("ttft_ms", "p50", "p99"),
        *times("tpot_ms", "p50", "p99"),
        *times("itl_ms", "mean", "p50", "p99"),
        f"{length:.2f}" if length else "",
        str(row["requests"]),
        str(row["failed"]),
    ]


def _drafter(row: Mapping[str, Any]) -> str:
    kind = speculation_of(row)
    if kind in {"off", "unknown"}:
        return kind
    made = str(row["draft_tokens"] or "on")
    return f"{made} of MTP" if kind == "mtp" else made


def _published(rows: Rows) -> Iterator[str]:
    if not rows:
        return
    columns = (
        "published", "concurrency", "draft tokens", "without", "DFlash", "length", "source", "here", "draft tokens",
        "without", "DFlash", "length",
    )  # fmt: skip
    fields = (
        "workload", "concurrency", "draft_tokens", "plain", "dflash", "acceptance_length", "source", "ours_workload",
        "ours_draft_tokens", "ours_plain", "ours_dflash", "ours_acceptance_length",
    )  # fmt: skip
    cells = [[_cell(row[field]) for field in fields] for row in rows]
    yield "<section><h2>What others published for this machine and these models</h2>"
    yield "<p>tokens/s of all requests together; their prompts, lengths and engines differ from these.</p>"
    yield table("Published figures", columns, cells)
    yield "</section>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else str(value)


def table(name: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, in a region that scrolls if it is too wide."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    # a keyboard must reach a region that scrolls
    region = f'<div class="wide" role="region" aria-label="{escape(name, quote=True)}" tabindex="0">'
    return f"{region}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _how(measured: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in measured.get("settings", {}).items())
    parts = [
        "Concurrency is the number of clients; each sends its next request as soon as it has an answer. Repeats after "
        f"a warm-up: {measured['repeats']}; throughput is their median, all other figures are over all repeats.",
        f"Temperature {measured['temperature']:g}, answers of at most {measured['max_tokens']} tokens unless a prompt "
        "sets another length.",
        "A bar goes from the smallest value to the 99th percentile, its box holds the middle half, its stroke is the "
        "median. Chunks hold several tokens if drafts are accepted.",
    ]
    if settings:
        parts.append(f"Settings: {settings}.")
    return "<section><h2>How it was measured</h2>" + "".join(f"<p>{escape(part)}</p>" for part in parts) + "</section>"


AGENT_PLOTS = (
    ("Time to the first token", "ttft_ms", "ms", 1),
    ("Tokens of one request after its first", "tokens_per_s", "tokens/s", 1),
    ("Speed-up by speculative decoding, prompt included", "speedup", "times", 1),
    ("Acceptance length", "acceptance_length", "tokens", 1),
    ("Prompt found in the prefix cache", "cached_share", "%", 100),
    ("Longest queue", "waiting", "requests", 1),
    ("Memory of the engine", "memory_bytes", "MiB", 2**-20),
)
"""Title, property, unit and factor of each plot of agents' conversations."""


def agents_page(
    measured: Mapping[str, Any], verdicts: Sequence[str], stages: Mapping[str, tuple[Rows, Sequence[Sequence[str]]]]
) -> str:
    """The report of agents: for `turn` and `context` the rows of its JSON, and a table with its head."""
    how = (
        f"{measured['agents']} agents, {measured['turns']} turns, up to {measured['context']:,} tokens of context "
        f"and {measured['max_tokens']} of an answer, repeats {measured['repeats']}. The agents share a system "
        "prompt, read a file in each turn, and begin each turn together, up to two seconds apart."
    )
    body = [f"<p>{escape(_of(measured))}</p>", *(f'<p class="lead">{escape(one)}.</p>' for one in verdicts)]
    for place, (rows, (head, *cells)) in stages.items():
        drawn, title = "".join(_agent_plots(place, rows)), f"By {place}"
        body.append(f'<section><h2>{title}</h2><div class="plots">{drawn}</div>{table(title, head, cells)}</section>')
    return html_page(f"{measured['model']}: conversations of agents", "".join([*body, f"<p>{escape(how)}</p>"]))


def _agent_plots(places: str, rows: Rows) -> Iterator[str]:
    parts: tuple[Speculation, ...] = ("dflash", "off", "unknown")
    for title, field, unit, factor in AGENT_PLOTS:
        found = [
            Series(PARTS[kind], STYLES[kind], tuple((row["at"], row[field] * factor) for row in rows
                                                   if row["drafter"] is DRAFTER[kind] and row[field] is not None))
            for kind in parts
        ]  # fmt: skip
        if shown := [one for one in found if one.points]:
            yield lines(title, places, unit, shown, reference=1.0 if field == "speedup" else None)


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["workload"] for row in rows))

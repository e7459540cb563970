"""The report as one HTML file: without scripts and external files, light or dark as the reader's system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from dflash_deploy.bench.figures import PARTS, Speculation, at_concurrency, speculation_of
from dflash_deploy.bench.plots import Range, Series, lines, number, ranges

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


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["workload"] for row in rows))

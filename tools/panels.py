"""`python -m tools.panels URL PAGE`: draws panels of dashboards from a running Prometheus as HTML.

The curves are those of `bench`'s report, so that a browser shows what Grafana would be asked for without Grafana.
"""

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from math import isnan
from pathlib import Path
from typing import Any

from dflash_deploy.bench.page import Series, html_page, lines, number
from tests.support.prometheus import Prometheus, dashboards

DRAWN = ("overview", "speculative-decoding")
"""The dashboards on the page."""

POINTS = 13
"""Points of a curve."""

SCALES: Mapping[str, tuple[float, str]] = {
    "percentunit": (100, "%"),
    "bytes": (1e-9, "GB"),
    "s": (1000, "ms"),
    "reqps": (1, "requests/s"),
    **dict.fromkeys(("none", "short", "dateTimeAsIso"), (1, "")),
}
"""Factor and unit of values that are not drawn in the panel's own unit."""

NO_DATA = "no data"


def panels_page(prometheus: Prometheus, seconds: int) -> str:
    """The page with the panels of the last `seconds`."""
    step = max(1, seconds // (POINTS - 1))
    end = time.time()
    known = dashboards()
    body = "".join(_section(known[name], prometheus, end - step * (POINTS - 1), step) for name in DRAWN)
    said = (
        f"<p>The last {step * (POINTS - 1)} seconds until {datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M:%S} UTC.</p>"
    )
    return html_page("Panels from Prometheus", said + body)


def _section(dashboard: Mapping[str, Any], prometheus: Prometheus, start: float, step: int) -> str:
    drawn = "".join(_panel(panel, prometheus, start, step) for panel in dashboard["panels"])
    return f'<section><h2>{escape(dashboard["title"])}</h2><div class="plots">{drawn}</div></section>'


def _panel(panel: Mapping[str, Any], prometheus: Prometheus, start: float, step: int) -> str:
    title, said = panel["title"], panel["description"].partition("\n")[0]
    # what Grafana does not know is a suffix
    shown = panel["fieldConfig"]["defaults"]["unit"].removeprefix("suffix: ")
    factor, unit = SCALES.get(shown, (1, shown))
    found = [
        (
            _named(curve["legendFormat"], one["metric"]),
            [(round(at - start), float(value) * factor) for at, value in one["values"]],
        )
        for curve in panel["targets"]
        for one in prometheus.curve(curve["expr"].replace("$deployment", ".*"), start, step, POINTS)
    ]
    # a rate has no value before its second sample
    known = [(name, [(at, value) for at, value in points if not isnan(value)]) for name, points in found]
    known = [(name, points) for name, points in known if points]
    if not known or panel["type"] == "stat":
        values = [f"{name}: {_stat(points[-1][1], shown)} {unit}" for name, points in known] or [NO_DATA]
        figure = f'<figure class="stat"><figcaption><b>{escape(title)}</b></figcaption>{_paragraphs(values)}'
        return f"{figure}{_paragraphs([said])}</figure>"
    series = [Series(name, style, tuple(points)) for style, (name, points) in enumerate(known)]
    drawn = lines(title, "seconds", unit, series)
    return drawn.replace("</figure>", f"{_paragraphs([said])}</figure>")


def _stat(value: float, unit: str) -> str:
    return f"{datetime.fromtimestamp(value / 1000, UTC):%H:%M:%S}" if unit == "dateTimeAsIso" else number(value)


def _named(legend: str, labels: Mapping[str, str]) -> str:
    """The legend of a series, with its labels in the places that Grafana fills."""
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), legend).strip()


def _paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def without_data(page: str) -> Iterator[str]:
    """The titles of panels without data."""
    for figure in page.split("<figure")[1:]:
        if f"<p>{NO_DATA}</p>" in figure:
            yield figure.partition("<b>")[2].partition("</b>")[0]


def main(arguments: Sequence[str]) -> None:
    """Draw the last hour."""
    url, page = arguments
    drawn = panels_page(Prometheus(url.rstrip("/")), 3600)
    Path(page).write_text(drawn, encoding="utf-8")
    print(f"{page}: panels without data: {', '.join(without_data(drawn)) or 'none'}")


if __name__ == "__main__":
    main(sys.argv[1:])

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

from dflash_deploy.bench.page import Series, html_page, lines, number
from dflash_deploy.features.monitoring.dashboards import DASHBOARDS, Curve, Dashboard, Panel
from tests.support.prometheus import Prometheus

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
    body = "".join(
        _section(one, prometheus, end - step * (POINTS - 1), step) for one in DASHBOARDS if one.name in DRAWN
    )
    said = (
        f"<p>The last {step * (POINTS - 1)} seconds until {datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M:%S} UTC.</p>"
    )
    return html_page("Panels from Prometheus", said + body)


def _section(dashboard: Dashboard, prometheus: Prometheus, start: float, step: int) -> str:
    drawn = "".join(_panel(panel, prometheus, start, step) for panel in dashboard.panels)
    return f'<section><h2>{escape(dashboard.title)}</h2><div class="plots">{drawn}</div></section>'


def _panel(panel: Panel, prometheus: Prometheus, start: float, step: int) -> str:
    factor, unit = SCALES.get(panel.unit, (1, panel.unit))
    found = [
        (_named(curve, one["metric"]), [(round(at - start), float(value) * factor) for at, value in one["values"]])
        for curve in panel.curves
        for one in prometheus.curve(curve.expr.replace("$deployment", ".*"), start, step, POINTS)
    ]
    # a rate has no value before its second sample
    known = [(name, [(at, value) for at, value in points if not isnan(value)]) for name, points in found]
    known = [(name, points) for name, points in known if points]
    if not known or panel.kind == "stat":
        values = [f"{name}: {_stat(points[-1][1], panel.unit)} {unit}" for name, points in known] or [NO_DATA]
        figure = f'<figure class="stat"><figcaption><b>{escape(panel.title)}</b></figcaption>{_paragraphs(values)}'
        return f"{figure}{_paragraphs([panel.says])}</figure>"
    series = [Series(name, style, tuple(points)) for style, (name, points) in enumerate(known)]
    drawn = lines(panel.title, "seconds", unit, series)
    return drawn.replace("</figure>", f"{_paragraphs([panel.says])}</figure>")


def _stat(value: float, unit: str) -> str:
    return f"{datetime.fromtimestamp(value / 1000, UTC):%H:%M:%S}" if unit == "dateTimeAsIso" else number(value)


def _named(curve: Curve, labels: Mapping[str, str]) -> str:
    """The legend of a series, with its labels in the places that Grafana fills."""
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), curve.legend).strip()


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

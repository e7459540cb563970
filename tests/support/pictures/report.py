"""The plots of the bench report as one SVG, from the figures of a run that is kept beside it.

dflash-deploy bench ... --json >run.json
python -m tests.support.pictures.report run.json
"""

import json
import re
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from dflash_deploy.bench.page import headlines, page
from dflash_deploy.bench.plots import HEIGHT, WIDTH

FOLDER = Path(__file__).parents[3] / "docs" / "pictures"
FIGURES = FOLDER / "bench-report.json"
PICTURE = FOLDER / "bench-report.svg"

ACROSS, GAP, HEAD, NAME = 2, 24, 56, 40
"""Plots in a row; pixels between them, above all of them, and above one."""

LETTER = 6.4
"""Width of a letter of a legend, in pixels, with room to spare."""

_FIGURE = re.compile(r"<figure>.*?</figure>", re.DOTALL)


class Plot(NamedTuple):
    """One plot of the report: its title, its unit, the names of its colours with their styles, and its drawing."""

    title: str
    unit: str
    legend: list[tuple[str, str]]
    drawing: ElementTree.Element


def plots(data: dict[str, Any]) -> Iterator[Plot]:
    """The plots of the report over concurrency or position, in its order."""
    for text in _FIGURE.findall(page(data)):
        # the page and this reader are of one program
        figure = ElementTree.fromstring(text)
        drawing = figure.find("svg")
        assert drawing is not None
        if drawing.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}":
            legend = [("".join(item.itertext()), str(item.get("class"))) for item in figure.iter("li")]
            yield Plot(figure.findtext("figcaption/b", ""), figure.findtext("figcaption/span", ""), legend, drawing)


def picture(data: dict[str, Any]) -> str:
    """The SVG document. It has the colours of the report, light or dark as the reader's system."""
    shown = list(plots(data))
    title = f"The report of bench: {' '.join(headlines(data['rows']))}"
    rows = -(-len(shown) // ACROSS)
    width, height = ACROSS * (WIDTH + GAP) + GAP, HEAD + rows * (NAME + HEIGHT + GAP)
    css = (resources.files("dflash_deploy.bench") / "page.css").read_text(encoding="utf-8")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui,sans-serif">',
        f"<title>{escape(title)}</title>",
        f"<style>{escape(css)}svg{{display:inline}}text{{fill:var(--ink)}}.t{{font-size:11px}}.soft{{fill:var(--soft)}}"
        ".key{fill:var(--c)}</style>",
        f'<rect width="{width}" height="{height}" fill="var(--bg)"/>',
        f'<text x="{GAP}" y="28" font-size="14">{escape(_of(data["measured"]))}</text>',
    ]
    for number, plot in enumerate(shown):
        x, y = GAP + number % ACROSS * (WIDTH + GAP), HEAD + number // ACROSS * (NAME + HEIGHT + GAP)
        parts += _placed(plot, x, y)
    return "\n".join([*parts, "</svg>", ""])


def _of(measured: dict[str, Any]) -> str:
    named = (measured.get(name) for name in ("model", "profile", "engine"))
    return f"{', '.join(filter(None, named))}: measured {measured['at'][:10]}"


def _placed(plot: Plot, x: int, y: int) -> Iterator[str]:
    yield (
        f'<text x="{x}" y="{y}" font-size="13" font-weight="600">{escape(plot.title)} '
        f'<tspan class="soft" font-weight="400">{escape(plot.unit)}</tspan></text>'
    )
    at = float(x)
    for name, style in plot.legend:
        yield f'<g class="{style}"><rect class="key" x="{at:g}" y="{y + 10}" width="16" height="9" rx="2"/></g>'
        yield f'<text x="{at + 21:g}" y="{y + 18}" font-size="11.5">{escape(name)}</text>'
        at += 21 + LETTER * len(name) + 14
    plot.drawing.attrib |= {"x": str(x), "y": str(y + NAME - 12), "width": str(WIDTH), "height": str(HEIGHT)}
    yield ElementTree.tostring(plot.drawing, encoding="unicode")


def main(document: Path) -> None:
    """Keep the figures of a document of `bench --json`, and draw them."""
    data = json.loads(document.read_text(encoding="utf-8"))["data"]
    FIGURES.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    PICTURE.write_text(picture(data), encoding="utf-8")
    print(f"{PICTURE.name}: {len(list(plots(data)))} plots")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The report of `bench`, looked at in a real browser: light and dark, wide and narrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.bench.page import page as report_page
from tests.support.browser import Page, browser_or_skip
from tests.support.measured import document

PLOTTED = """
return [...document.querySelectorAll('figure')].map(figure => {
  const box = element => element.getBoundingClientRect();
  const middle = element => box(element).y + box(element).height / 2;
  const numbers = [...figure.querySelectorAll('text[text-anchor=end]')];
  return {
    title: figure.querySelector('b').textContent,
    ticks: numbers.map(text => [middle(text), Number(text.textContent.replaceAll(',', ''))]),
    dots: [...figure.querySelectorAll('circle')].map(dot => [middle(dot), dot.dataset.series, Number(dot.dataset.x)]),
  };
});
"""

CONTRASTS = """
const channels = colour => colour.match(/[0-9.]+/g).slice(0, 3).map(value => {
  const part = value / 255;
  return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
});
const light = colour => { const [r, g, b] = channels(colour); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const against = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
const ground = element => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour !== 'rgba(0, 0, 0, 0)') return light(colour);
  }
};
return [...document.querySelectorAll('h1, h2, p, th, td, li, figcaption, svg text')].map(element => {
  const style = getComputedStyle(element);
  return against(light(element.closest('svg') ? style.fill : style.color), ground(element));
});
"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A browser."""
    with browser_or_skip("the report") as tab:
        yield tab


@pytest.fixture
def report(tmp_path: Path) -> Path:
    file = tmp_path / "report.html"
    file.write_text(report_page(document()))
    return file


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_it_is_whole_readable_and_asks_for_nothing(page: Page, report: Path, width: int, dark: bool) -> None:
    page.open(report, width=width, dark=dark)
    assert page.console() == []
    assert page.requests() == [report.as_uri()]
    across, room = page.evaluate("return [document.documentElement.scrollWidth, innerWidth]")
    assert across <= room == width
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 100
    # WCAG 2.2, 1.4.3: text against its ground
    assert min(contrasts) >= 4.5
    heights = page.evaluate(
        "return [...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().height)"
    )
    assert min(heights) >= 11


@pytest.mark.parametrize("width", [1200, 400])
def test_dots_stand_where_the_json_has_them(page: Page, report: Path, width: int) -> None:
    page.open(report, width=width)
    rows = document()["rows"]
    plots: dict[str, list[dict[str, Any]]] = {}
    for plot in page.evaluate(PLOTTED):
        plots.setdefault(plot["title"], []).append(plot)
    (speedups,) = plots["Speed-up by speculative decoding"]
    expected = {(row["workload"], row["concurrency"]): row["speedup"] for row in rows if row["drafter"]}
    assert read_off(speedups) == pytest.approx(expected, abs=0.05)
    for workload, plot in zip(("code", "prose & <verse>"), plots["Throughput"], strict=True):
        expected = {
            ("with the drafter" if row["drafter"] else "without the drafter", row["concurrency"]): row["tokens_per_s"]
            for row in rows
            if row["workload"] == workload
        }
        assert read_off(plot) == pytest.approx(expected, abs=max(expected.values()) / 100)


def read_off(plot: dict[str, Any]) -> dict[tuple[str, int], float]:
    """The values of the dots as a reader takes them from the axis: by where they stand on the screen."""
    (low, first), (high, last) = (
        min(plot["ticks"], key=lambda tick: tick[1]),
        max(plot["ticks"], key=lambda tick: tick[1]),
    )
    return {(name, x): first + (last - first) * (y - low) / (high - low) for y, name, x in plot["dots"]}

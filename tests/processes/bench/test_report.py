"""The report of `bench`, looked at in a real browser: light and dark, wide and narrow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.operations.bench import page as report_page
from tests.support.browser import Page, browser_or_skip
from tests.support.measured import document, talked

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


def written(place: Path, data: dict[str, Any]) -> Path:
    """The report of these figures."""
    file = place / "report.html"
    file.write_text(report_page(json.dumps({"schema": 1, "command": "bench", "data": data})))
    return file


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return written(tmp_path, document())


DOTS = """
return [...document.querySelectorAll('circle')].map(dot =>
  [dot.dataset.series, Number(dot.dataset.x), Number(dot.dataset.y)]);
"""
RANGES = """
return [...document.querySelectorAll('g.range')].map(one =>
  [one.dataset.series, Number(one.dataset.p50), Number(one.dataset.high)]);
"""
TEXT = "return document.body.innerText"
WITH, WITHOUT = "with the drafter", "without the drafter"


def dots(page: Page, place: Path, data: dict[str, Any]) -> set[tuple[str, int, float]]:
    page.open(written(place, data), width=1200)
    assert page.requests() == [(place / "report.html").as_uri()]
    return set(map(tuple, page.evaluate(DOTS)))


def test_every_figure_of_the_json_is_plotted(page: Page, tmp_path: Path) -> None:
    data = document()
    found = dots(page, tmp_path, data)
    spreads = set(map(tuple, page.evaluate(RANGES)))
    for row in data["rows"]:
        half = WITH if row["drafter"] else WITHOUT
        assert (half, row["concurrency"], row["tokens_per_s"]) in found
        if row["drafter"]:
            assert (row["workload"], row["concurrency"], row["speedup"]) in found
        for times in (row["ttft_ms"], row["tpot_ms"], row["itl_ms"]):
            assert (f"{row['concurrency']}, {half}", times["p50"], times["p99"]) in spreads
    for workload in ("code", "prose & <verse>"):
        row = next(row for row in data["rows"] if row["workload"] == workload)
        for place, share in enumerate(row["acceptance_by_position"], 1):
            assert (f"{workload}, length {row['acceptance_length']:.2f}", place, 100 * share) in found
    said = page.evaluate(TEXT)
    assert "a <model>" in said
    assert "What others published" in said


def test_conversations_are_plotted_by_turn(page: Page, tmp_path: Path) -> None:
    data = talked()
    found = dots(page, tmp_path, data)
    for row in data["rows"]:
        half = WITH if row["drafter"] else WITHOUT
        assert {(half, row["turn"], row["tokens_per_s"]), (half, row["turn"], 100 * row["cached_share"])} <= found
        if row["drafter"]:
            assert (half, row["turn"], row["speedup"]) in found
    assert "agents, concurrency 2" in page.evaluate(TEXT)


def test_a_run_without_plain_decoding_has_no_speed_up(page: Page, tmp_path: Path) -> None:
    data = document()
    data["rows"] = [row | {"speedup": None} for row in data["rows"] if row["drafter"]]
    data["published"] = []
    dots(page, tmp_path, data)
    said = page.evaluate(TEXT)
    assert "Speed-up" not in said
    assert "others published" not in said
    assert "at concurrency 4" not in said
    assert "656 tokens/s at concurrency 8 with the drafter." in said


def test_drafts_of_the_target_s_own_head_are_drawn_beside_those_of_the_drafter(page: Page, tmp_path: Path) -> None:
    data = document()
    drafted = [row for row in data["rows"] if row["drafter"]]
    data["rows"] += [row | {"mtp": True, "speedup": row["speedup"] / 2, "tokens_per_s": 11.0} for row in drafted]
    found = dots(page, tmp_path, data)
    for row in drafted:
        assert ("with the MTP head", row["concurrency"], 11.0) in found
        assert (WITH, row["concurrency"], row["tokens_per_s"]) in found
        assert (row["workload"], row["concurrency"], row["speedup"]) in found
        assert (f"{row['workload']}, MTP", row["concurrency"], row["speedup"] / 2) in found
    said = page.evaluate(TEXT)
    assert "7 of MTP" in said
    # the headline is about the drafter
    assert "11.0 tokens/s with the MTP head" not in said


def test_an_endpoint_of_which_nothing_is_known_is_said_to_be_as_served(page: Page, tmp_path: Path) -> None:
    data = document()
    data["rows"] = [row | {"speedup": None, "drafter": None} for row in data["rows"] if row["drafter"]]
    found = dots(page, tmp_path, data)
    assert {series for series, _, value in found if value > 100} == {"as served"}
    assert WITH not in page.evaluate(TEXT)


def test_a_run_in_which_nothing_was_answered_is_still_a_page(page: Page, tmp_path: Path) -> None:
    data = document()
    empty = {"requests": 0, "failed": 12, "tokens_per_s": 0.0, "ttft_ms": None, "tpot_ms": None, "itl_ms": None}
    nothing = {"acceptance_length": None, "acceptance_by_position": (), "speedup": None}
    data["rows"] = [row | empty | nothing for row in data["rows"]]
    assert dots(page, tmp_path, data) == set()
    assert "How it was measured" in page.evaluate(TEXT)
    assert page.console() == []


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

"""The report: its plots and tables say what the JSON says, where it says it."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.bench.page import HEIGHT, LABELS, WIDTH, Range, Series, axis, lines, number, page, ranges
from tests.support.measured import document
from tests.support.schemas import data_problems

Attributes = dict[str, str]


class Elements(HTMLParser):
    """Every element with its attributes, in order, and all text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, Attributes]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str, kind: str = "") -> list[Attributes]:
        return [attrs for name, attrs in self.found if name == tag and kind in ("", *attrs.get("class", "").split())]


def test_the_made_up_run_is_one_that_bench_can_print() -> None:
    assert data_problems("bench", document()) == []


def test_every_figure_of_the_json_is_plotted() -> None:
    data = document()
    drawn = Elements(page(data)).all("circle")
    dots = {(dot["data-series"], int(dot["data-x"]), float(dot["data-y"])) for dot in drawn}
    for row in data["rows"]:
        half = "with the drafter" if row["drafter"] else "without the drafter"
        assert (half, row["concurrency"], row["tokens_per_s"]) in dots
        if row["drafter"]:
            assert (row["workload"], row["concurrency"], row["speedup"]) in dots
    for workload in ("code", "prose & <verse>"):
        row = next(row for row in data["rows"] if row["workload"] == workload)
        for place, share in enumerate(row["acceptance_by_position"], 1):
            assert (f"{workload}, length {row['acceptance_length']:.2f}", place, 100 * share) in dots


def test_every_time_of_the_json_is_plotted() -> None:
    data = document()
    groups = Elements(page(data)).all("g")
    drawn = {(one["data-series"], float(one["data-p50"]), float(one["data-high"])) for one in groups}
    for row in data["rows"]:
        name = f"{row['concurrency']}, {'with the drafter' if row['drafter'] else 'without the drafter'}"
        for times in (row["ttft_ms"], row["tpot_ms"], row["itl_ms"]):
            assert (name, times["p50"], times["p99"]) in drawn


def test_names_from_outside_stay_text() -> None:
    text = page(document())
    assert "a <model>" not in text
    assert "a &lt;model&gt;" in text
    assert "<verse>" not in text


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = page(document())
    assert "script" not in text
    assert not re.findall(r"https?://", text)
    assert {attrs.get("href") for _, attrs in Elements(text).found if "href" in attrs} == {"data:,"}


def test_a_run_without_plain_decoding_has_no_speed_up() -> None:
    data = document()
    data["rows"] = [row | {"speedup": None} for row in data["rows"] if row["drafter"]]
    data["published"] = []
    text = page(data)
    assert "Speed-up" not in text
    assert "others published" not in text
    assert "at concurrency 4" not in text
    assert "656 tokens/s at concurrency 8 with the drafter." in " ".join(Elements(text).text)


def test_drafts_of_the_target_s_own_head_are_drawn_beside_those_of_the_drafter() -> None:
    data = document()
    drafted = [row for row in data["rows"] if row["drafter"]]
    data["rows"] += [row | {"mtp": True, "speedup": row["speedup"] / 2, "tokens_per_s": 11.0} for row in drafted]
    drawn = Elements(page(data))
    dots = {(dot["data-series"], int(dot["data-x"]), float(dot["data-y"])) for dot in drawn.all("circle")}
    for row in drafted:
        assert ("with the MTP head", row["concurrency"], 11.0) in dots
        assert ("with the drafter", row["concurrency"], row["tokens_per_s"]) in dots
        assert (row["workload"], row["concurrency"], row["speedup"]) in dots
        assert (f"{row['workload']}, MTP", row["concurrency"], row["speedup"] / 2) in dots
    assert "7 of MTP" in drawn.text
    # what is told first is the drafter
    assert "11.0 tokens/s with the MTP head" not in " ".join(drawn.text)


def test_an_endpoint_of_which_nothing_is_known_is_said_to_be_as_served() -> None:
    data = document()
    data["rows"] = [row | {"speedup": None, "drafter": None} for row in data["rows"] if row["drafter"]]
    drawn = Elements(page(data))
    assert {dot["data-series"] for dot in drawn.all("circle") if float(dot["data-y"]) > 100} == {"as served"}
    assert "with the drafter" not in " ".join(drawn.text)


def test_a_run_in_which_nothing_was_answered_is_still_a_page() -> None:
    data = document()
    empty = {"requests": 0, "failed": 12, "tokens_per_s": 0.0, "ttft_ms": None, "tpot_ms": None, "itl_ms": None}
    nothing = {"acceptance_length": None, "acceptance_by_position": (), "speedup": None}
    data["rows"] = [row | empty | nothing for row in data["rows"]]
    assert "<svg" not in page(data)


POINTS = st.dictionaries(st.integers(1, 64), st.just(0.0) | st.floats(1e-3, 1e6), min_size=1, max_size=8)


@given(POINTS)
def test_a_dot_is_where_its_value_is_on_the_axis(points: dict[int, float]) -> None:
    drawn = Elements(lines("t", "streams", "u", [Series("s", 0, tuple(sorted(points.items())))]))
    grid = [float(line["y1"]) for line in drawn.all("line", "grid")]
    highest = axis(max(points.values()), 0, 1).top
    bottom, top = max(grid), min(grid)
    for dot in drawn.all("circle"):
        value = (bottom - float(dot["cy"])) / (bottom - top) * highest
        assert value == pytest.approx(float(dot["data-y"]), abs=highest * 1e-4)
        assert 0 <= float(dot["cx"]) <= WIDTH
        assert 0 <= float(dot["cy"]) <= HEIGHT
    across = [float(dot["cx"]) for dot in drawn.all("circle")]
    assert across == sorted(across)


@given(st.lists(st.floats(0.001, 1e5), min_size=5, max_size=5))
def test_a_range_is_where_its_values_are(values: list[float]) -> None:
    low, p25, p50, p75, high = sorted(values)
    drawn = Elements(ranges("t", "ms", [Range("1", "g", 0, low, p25, p50, p75, high)]))
    right = max(float(line["x1"]) for line in drawn.all("line", "grid"))
    scale = (right - LABELS) / axis(high, 0, 1).top
    (median,) = drawn.all("line", "median")
    (whisker,) = drawn.all("line", "whisker")
    assert float(median["x1"]) == pytest.approx(LABELS + p50 * scale, abs=0.01)
    assert float(whisker["x2"]) == pytest.approx(LABELS + high * scale, abs=0.01)


@given(st.floats(1e-3, 1e7))
def test_an_axis_ends_at_a_round_number_just_above(highest: float) -> None:
    made = axis(highest, 0, 1)
    assert made.top >= highest * 0.999999
    assert 3 <= len(made.ticks()) <= 8
    assert made.ticks()[-1] == pytest.approx(made.top)


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "0"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234"), (4.0, "4")]
)
def test_figures_have_three_digits_that_count(value: float, said: str) -> None:
    assert number(value) == said

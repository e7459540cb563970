"""The curves of `capacity` as one HTML file, in the style of the report of `bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from dflash_deploy.bench.page import Series, html_page, lines, number, table
from dflash_deploy.features.capacity.load_text import UserLoad
from dflash_deploy.features.capacity.simulation import Simulated, Sized

COLUMNS = (
    "", "users on one", "requests in flight", "TTFT p50 s", "p95 s", "answer p50 s", "p95 s", "tokens/s", "requests/s",
)  # fmt: skip

PLACES = "users on one replica"


def capacity_page(title: str, load: UserLoad, sides: Mapping[str, Sized], lead: Sequence[str]) -> str:
    """The page: `sides` are the ways to draft, by their names; `lead` are the results and notes in words."""
    plots = [
        _plot("TTFT, 95th percentile", "s", sides, lambda one: one.ttft_p95_s, load.p95_ttft_s),
        _plot("Whole answer, 95th percentile", "s", sides, lambda one: one.answer_p95_s, load.p95_answer_s),
        _plot("Throughput of one replica", "tokens/s", sides, lambda one: one.tokens_per_s, None),
        _plot("Requests in flight", "on average", sides, lambda one: one.sequences, None),
    ]
    rows = [_cells(name, one) for name, sized in sides.items() for one in sized.curve]
    body = "".join(
        (
            *(f'<p class="lead">{escape(line)}</p>' for line in lead),
            f'<section><h2>One replica</h2><div class="plots">{"".join(plots)}</div></section>',
            f"<section><h2>All figures</h2>{table('All figures', COLUMNS, rows)}</section>",
        )
    )
    return html_page(title, body)


def _plot(
    title: str, unit: str, sides: Mapping[str, Sized], value: Callable[[Simulated], float], goal: float | None
) -> str:
    series = [
        Series(name, style, tuple((one.users, value(one)) for one in sized.curve))
        for style, (name, sized) in enumerate(sides.items())
    ]
    said = f"{title} (goal: {number(goal)} {unit})" if goal is not None else title
    return lines(said, PLACES, unit, series, reference=goal)


def _cells(name: str, one: Simulated) -> list[str]:
    return [name, str(one.users), *_numbers(one)]


def _numbers(one: Simulated) -> Iterator[str]:
    times = (one.ttft_p50_s, one.ttft_p95_s, one.answer_p50_s, one.answer_p95_s)
    yield from map(number, (one.sequences, *times, one.tokens_per_s, one.requests_per_s))

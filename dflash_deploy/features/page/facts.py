"""What the page shows beside the conversation: engine, last start, figures of `bench`, and clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import DeployError
from dflash_deploy.intake.documents import BenchRow, BenchRun
from dflash_deploy.operations.addresses import key_in
from dflash_deploy.operations.connect import Connections, connect, connect_url
from dflash_deploy.operations.figures import LAST_BASELINE, last_figures
from dflash_deploy.operations.status import EndpointStatus, Status, status, status_url
from dflash_deploy.redact import Redact
from dflash_deploy.startup.progress import usual_seconds

Row = tuple[str, str]  # the name of a fact, and the fact


BAR = 18  # pixels of a bar of the chart, and of the gap after those of a workload


@dataclass(frozen=True)
class Bars:
    """A bar chart of a run of `bench`: its time, its options for Apache ECharts, and its height in pixels."""

    at: str
    chart: Mapping[str, object]
    height: int


@dataclass(frozen=True)
class PageSource:
    """What the page is about: a deployment, or an endpoint by its URL."""

    directory: Path
    url: str | None = None
    key_file: Path | None = None
    model: str = ""

    def engine(self, redact: Redact) -> list[Row]:
        """State, speed and memory of the engine, which answers one short question for it."""
        try:
            rows = self._of_url() if self.url is not None else _of_deployment(self.directory)
            return [(name, redact(text)) for name, text in rows if text]
        except DeployError as problem:
            return [("state", "unknown"), ("problem", redact(problem.message)), ("do", redact(problem.hint))]

    def _of_url(self) -> list[Row]:
        assert self.url is not None  # noqa: S101 - the caller asked
        found = status_url(self.url, key_in(self.key_file), model=self.model)
        return [("endpoint", found.endpoint), *_answered(found)]

    def clients(self) -> Connections:
        """How clients reach the endpoint. Raises DeployError if that cannot be read."""
        if self.url is None:
            return connect(self.directory)
        return connect_url(self.url, key_file=self.key_file, model=self.model)

    def start(self) -> dict[str, float]:
        """Seconds of each phase of the last start; empty if they are not known."""
        return usual_seconds(Deployment(self.directory)) if self.url is None else {}

    def measured(self) -> Bars | None:
        """What `bench` measured last, with and without drafts if it ever did both; `None` if it did not run."""
        if self.url is not None:
            return None
        deployment = Deployment(self.directory)
        run = last_figures(deployment, LAST_BASELINE) or last_figures(deployment)
        return bars_of(run) if run is not None and run.rows else None


def _of_deployment(directory: Path) -> list[Row]:
    found = status(directory)
    return [
        ("endpoint", found.endpoint),
        ("runtime", found.runtime),
        *_answered(found),
        ("memory", "" if found.memory_gib is None else f"{found.memory_gib} GiB"),
        ("GPU memory", f"{found.gpu_memory_gib} GiB" if found.gpu_memory_gib else ""),
        ("instead", found.instead or ""),
        ("known", found.costs or ""),
    ]


def _answered(answered: Status | EndpointStatus) -> Iterator[Row]:
    yield "state", answered.state
    yield "one answer", "" if answered.seconds is None else f"{answered.seconds:.2f} s"
    yield "acceptance length", "" if answered.acceptance_length is None else f"{answered.acceptance_length:.2f}"
    yield "cause", answered.cause or answered.problem or ""
    yield "do", answered.do or ""


# What a bar of the chart measured, and its colour: seen on a light and on a dark page.
SIDES = (("with drafts", "#0f9d76"), ("without drafts", "#9aa5b1"), ("MTP head", "#3f7fd6"))


def _side(row: BenchRow) -> str:
    return "MTP head" if row.mtp else "without drafts" if row.drafter is False else "with drafts"


def bars_of(run: BenchRun) -> Bars:
    """The tokens per second of each workload and concurrency, one bar for each side."""
    rows = run.rows
    places = list(dict.fromkeys(_named(row) for row in rows))
    rates = {(_named(row), _side(row)): round(row.output_tokens / row.duration_s, 1) for row in rows}
    series = [
        {
            "name": side,
            "type": "bar",
            "color": colour,
            "data": [rates.get((place, side)) for place in places],
            "label": {"show": True, "position": "right", "color": "#808890"},
        }
        for side, colour in SIDES
        if any((place, side) in rates for place in places)
    ]
    words = {"color": "#808890"}
    chart = {
        "aria": {"enabled": True},
        "animation": False,
        "legend": {"top": 0, "textStyle": words},
        "grid": {"left": 8, "right": 48, "top": 32, "bottom": 8, "containLabel": True},
        "xAxis": {"type": "value", "axisLabel": words, "splitLine": {"show": False}},
        "yAxis": {"type": "category", "data": places, "axisLabel": words, "inverse": True},
        "series": series,
    }
    return Bars(run.measured.at, chart, height=BAR * (len(places) * len(series) + len(places) + 3))


def _named(row: BenchRow) -> str:
    return f"{row.workload}, {row.concurrency} at a time"

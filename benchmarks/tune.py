"""What `tune` proposes, against plain decoding and every fixed number of draft tokens, at each number of streams.

Each setting has an engine of its own, and all of them stand ready at the same time: a cell is measured in seconds, and
right after it the same cell of the next setting, so that what else the machine does falls on all of them. What is
proposed has an engine as well, even where it is one of the fixed numbers: what its ratio then differs from 1 is noise.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich import box
from rich.table import Table

from dflash_deploy.assets import asset
from dflash_deploy.bench import measure
from dflash_deploy.bench.workload import Limits, Workload, own, packaged
from dflash_deploy.catalog import load_catalog
from dflash_deploy.client import Endpoint
from dflash_deploy.tuning.experiment import OFF, fixed
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port
from tests.support.server import Server

ROUNDS = 5
WARMUP = 2
"""Requests before each cell: memory that was not touched for a while comes back slowly."""

FIXED = (1, 3, 7)
REQUESTS = {1: 2, 2: 4, 4: 8, 8: 16, 16: 32}
"""Requests of a cell by number of streams: seconds each, and the end, where streams stand idle, a small part of it."""

LIMITS = Limits(max_tokens=48, temperature=0.0, thinking=False)
TUNED = "tuned"
ON = {"DFLASH_DRAFTER": str(asset("models/tiny/drafter"))}

Settings = Mapping[str, str]
Cells = Mapping[tuple[str, int], list[Mapping[str, float]]]
"""Tokens/s by title of the setting, one mapping for each round, by workload and number of streams."""


@dataclass(frozen=True)
class Engine:
    """One setting, its engine, and the workloads that it is measured with."""

    title: str
    endpoint: Endpoint
    workloads: tuple[str, ...]


def table(*, eager: bool) -> Table:
    """A row for each workload and number of streams."""
    workloads = {"own": own(load_catalog().pairs["tiny"]), "prose": packaged("prose")}
    kept = {"MAX_NUM_SEQS": str(max(REQUESTS)), "ENFORCE_EAGER": "on" if eager else "off"}
    with _deployment(kept) as server:
        proposed = {name: _proposed(server.directory, name) for name in workloads}
    names = tuple(workloads)
    wanted = [
        ("plain", OFF, names),
        *((f"k={count}", ON | fixed(count), names) for count in FIXED),
        *((TUNED, {**ON, **changes}, (name,)) for name, changes in proposed.items()),
    ]
    with ExitStack() as stack:
        engines = []
        for title, changes, measured in wanted:
            server = stack.enter_context(_deployment({**kept, **changes}))
            engines.append(Engine(title, stack.enter_context(server.connect()), measured))
        cells = _measured(engines, workloads)
    return _drawn(cells, proposed, f"tune, {'eager' if eager else 'compiled'}, {ROUNDS} rounds, tokens/s")


@contextmanager
def _deployment(changes: Settings) -> Iterator[Server]:
    """The tiny pair with such settings, running."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        options = ("--profile", "cpu", "--runtime", "native", "--port", str(free_port()))
        dflash("init", *options, at=directory).succeeded()
        edit_env(directory, **changes)
        try:
            dflash("up", at=directory, timeout=900).succeeded()
            yield Server(directory)
        finally:
            dflash("down", at=directory)


def _proposed(directory: Path, workload: str) -> Settings:
    """The settings that `tune` proposes for a workload, from what the profile says."""
    streams = ",".join(map(str, REQUESTS))
    size = ("--requests", "16", "--repeats", "1", "--max-tokens", str(LIMITS.max_tokens))
    data = (
        dflash("tune", "--json", "-w", workload, "--concurrency", streams, *size, at=directory, timeout=3600)
        .succeeded()
        .document["data"]
    )
    proposal = data["proposal"]
    settings: Settings = proposal["settings"] if proposal else fixed(max(FIXED))
    print(f"tune proposes for {workload}: {settings}", flush=True)
    return settings


def _measured(engines: Sequence[Engine], workloads: Mapping[str, Workload]) -> Cells:
    """All rounds; each begins its rows with another engine."""
    cells: dict[tuple[str, int], list[Mapping[str, float]]] = defaultdict(list)
    for number in range(ROUNDS):
        turned = [*engines[number % len(engines) :], *engines[: number % len(engines)]]
        for name, workload in workloads.items():
            for streams in REQUESTS:
                row = {one.title: _rate(one.endpoint, workload, streams) for one in turned if name in one.workloads}
                print(number, name, streams, {title: round(rate) for title, rate in row.items()}, flush=True)
                cells[name, streams].append(row)
    return cells


def _rate(endpoint: Endpoint, workload: Workload, streams: int) -> float:
    bodies = workload.bodies(endpoint.model, LIMITS)
    return measure(endpoint, bodies, concurrency=streams, requests=REQUESTS[streams], warmup=WARMUP).median


def _drawn(cells: Cells, proposed: Mapping[str, Settings], title: str) -> Table:
    """Medians of the rounds; each ratio is the median of what the rounds had for themselves."""
    others = ("plain", *(f"k={count}" for count in FIXED))
    drawn = Table("prompts", "streams", *others, TUNED, "of the best", "of plain", title=title, box=box.SIMPLE_HEAD)
    for name, settings in proposed.items():
        for streams in REQUESTS:
            rounds = cells[name, streams]
            rates = {one: median(row[one] for row in rounds) for one in (*others, TUNED)}
            of = {one: median(row[TUNED] / row[one] for row in rounds) for one in others}
            ratios = (of[max(others, key=rates.__getitem__)], of["plain"])
            figures = (*(f"{rate:.0f}" for rate in rates.values()), *(f"{ratio:.2f}" for ratio in ratios))
            drawn.add_row(name, str(streams), *figures)
        written = ", ".join(f"{key}={value}" for key, value in settings.items() if value)
        drawn.add_row(name, "", *[""] * len(others), written, "0.97 or more", "1.00 or more", end_section=True)
    return drawn

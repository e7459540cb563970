"""The proposal of `tune`, compared with a run without speculative decoding and with fixed numbers of draft tokens.

Each setting has its own engine, and all engines run at the same time. A cell takes seconds, and the same cell of the
next setting follows at once, so that other load on the machine affects all settings. The proposal has its own engine
even if it equals one of the fixed numbers: the difference of its ratio from 1 is then noise.
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
from dflash_deploy.bench.load import measure
from dflash_deploy.bench.workload import Limits, Workload, own, packaged
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.tuning.choose import OFF, fixed
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port
from tests.support.server import Server

ROUNDS = 5
WARMUP = 2  # requests before each cell: memory that was not used for a while is slow at first
FIXED = (1, 3, 7)
# Requests of a cell by concurrency: enough for some seconds, so that the end, with fewer requests, is a small part.
REQUESTS = {1: 2, 2: 4, 4: 8, 8: 16, 16: 32}

LIMITS = Limits(max_tokens=48, temperature=0.0, thinking=False)
TUNED = "tuned"
ON = {"DFLASH_DRAFTER": str(asset("models/tiny/drafter"))}

Settings = Mapping[str, str]
# Tokens/s by title of the setting, one mapping for each round, by workload and concurrency.
Cells = Mapping[tuple[str, int], list[Mapping[str, float]]]


@dataclass(frozen=True)
class Engine:
    """One setting, its engine, and the workloads that it is measured with."""

    title: str
    endpoint: Endpoint
    workloads: tuple[str, ...]


def table(*, eager: bool) -> Table:
    """A row for each workload and concurrency."""
    workloads = {"own": own(load_catalog().pairs["tiny"]), "prose": packaged("prose")}
    kept = {"MAX_NUM_SEQS": str(max(REQUESTS)), "ENFORCE_EAGER": "on" if eager else "off"}
    with _deployment(kept) as server:
        proposed = {name: _proposed(server.directory, name) for name in workloads}
    names = tuple(workloads)
    wanted = [
        ("off", OFF, names),
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
    """A running deployment of the tiny models with these settings."""
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
    """The settings that `tune` proposes for a workload; it starts from those of the profile."""
    concurrency = ",".join(map(str, REQUESTS))
    size = ("--requests", "16", "--repeats", "1", "--max-tokens", str(LIMITS.max_tokens))
    asked = ("--json", "-w", workload, "--concurrency", concurrency, *size)
    changes = dflash("tune", *asked, at=directory, timeout=3600).succeeded().document["data"]["changes"]
    settings: Settings = changes or fixed(max(FIXED))
    print(f"tune proposes for {workload}: {settings}", flush=True)
    return settings


def _measured(engines: Sequence[Engine], workloads: Mapping[str, Workload]) -> Cells:
    """All rounds; each round measures its rows from a different engine on."""
    cells: dict[tuple[str, int], list[Mapping[str, float]]] = defaultdict(list)
    for number in range(ROUNDS):
        turn = [*engines[number % len(engines) :], *engines[: number % len(engines)]]
        for name, workload in workloads.items():
            for concurrency in REQUESTS:
                row = {one.title: _rate(one.endpoint, workload, concurrency) for one in turn if name in one.workloads}
                print(number, name, concurrency, {title: round(rate) for title, rate in row.items()}, flush=True)
                cells[name, concurrency].append(row)
    return cells


def _rate(endpoint: Endpoint, workload: Workload, concurrency: int) -> float:
    bodies = workload.bodies(endpoint.model, LIMITS)
    return measure(endpoint, bodies, concurrency=concurrency, requests=REQUESTS[concurrency], warmup=WARMUP).median


def _drawn(cells: Cells, proposed: Mapping[str, Settings], title: str) -> Table:
    """Medians of the rounds; each ratio is the median of the ratios within the rounds."""
    others = ("off", *(f"k={count}" for count in FIXED))
    drawn = Table("prompts", "concurrency", *others, TUNED, "of the best", "of off", title=title, box=box.SIMPLE_HEAD)
    for name, settings in proposed.items():
        for concurrency in REQUESTS:
            rounds = cells[name, concurrency]
            rates = {one: median(row[one] for row in rounds) for one in (*others, TUNED)}
            of = {one: median(row[TUNED] / row[one] for row in rounds) for one in others}
            ratios = (of[max(others, key=rates.__getitem__)], of["off"])
            figures = (*(f"{rate:.0f}" for rate in rates.values()), *(f"{ratio:.2f}" for ratio in ratios))
            drawn.add_row(name, str(concurrency), *figures)
        written = ", ".join(f"{key}={value}" for key, value in settings.items() if value)
        drawn.add_row(name, "", *[""] * len(others), written, "0.97 or more", "1.00 or more", end_section=True)
    return drawn

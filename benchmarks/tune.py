"""What `tune` proposes, against plain decoding and every fixed number of draft tokens, at each number of streams.

Each round starts the engine once for each setting, so that what else the machine does falls on all of them; a cell is
the median of the rounds. What is proposed is measured by itself, even where it is one of the fixed numbers.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from dflash_deploy.assets import asset
from dflash_deploy.bench import measure
from dflash_deploy.bench.workload import Limits, Workload, own, packaged
from dflash_deploy.catalog import load_catalog
from dflash_deploy.cli.tuning import OFF, fixed
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port
from tests.support.server import Server

ROUNDS = 3
FIXED = (1, 3, 7)
REQUESTS = {1: 3, 2: 4, 4: 8, 8: 16, 16: 32}
"""Requests of a cell by number of streams: seconds each, and the end, where streams stand idle, a small part of it."""

LIMITS = Limits(max_tokens=64, temperature=0.0, thinking=False)
TUNED = "tuned"
ON = {"DFLASH_DRAFTER": str(asset("models/tiny/drafter"))}

Rates = Mapping[int, list[float]]
"""Tokens/s of all rounds, by number of streams."""


@dataclass(frozen=True)
class Setting:
    """One start of the engine in each round, and the workloads that it is measured with."""

    title: str
    changes: Mapping[str, str]
    workloads: tuple[str, ...]


def table(*, eager: bool) -> Table:
    """A row for each workload and number of streams."""
    workloads = {"own": own(load_catalog().pairs["tiny"]), "prose": packaged("prose")}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        options = ("--profile", "cpu", "--runtime", "native", "--port", str(free_port()))
        dflash("init", *options, at=directory).succeeded()
        edit_env(directory, MAX_NUM_SEQS="16", ENFORCE_EAGER="on" if eager else "off")
        try:
            proposed = {name: _proposed(directory, name) for name in workloads}
            measured = _measured(directory, workloads, proposed)
        finally:
            dflash("down", at=directory)
    return _drawn(measured, proposed, f"tune, {'eager' if eager else 'compiled'}, {ROUNDS} rounds, tokens/s")


def _proposed(directory: Path, workload: str) -> Mapping[str, str]:
    """The settings that `tune` proposes for a workload, from what the profile says."""
    dflash("up", at=directory, timeout=900).succeeded()
    streams = ",".join(map(str, REQUESTS))
    told = ("-w", workload, "--concurrency", streams, "--requests", "16", "--repeats", "1", "--max-tokens", "64")
    data = dflash("tune", "--json", *told, at=directory, timeout=3600).succeeded().document["data"]
    proposal = data["proposal"]
    settings: Mapping[str, str] = proposal["settings"] if proposal else fixed(max(FIXED))
    return settings


def _measured(
    directory: Path, workloads: Mapping[str, Workload], proposed: Mapping[str, Mapping[str, str]]
) -> Mapping[tuple[str, str], Rates]:
    """Tokens/s of all rounds by workload and title; the order of the settings turns round from one to the next."""
    names = tuple(workloads)
    settings = [
        Setting("plain", OFF, names),
        *(Setting(f"k={count}", ON | fixed(count), names) for count in FIXED),
        *(Setting(TUNED, {**ON, **changes}, (name,)) for name, changes in proposed.items()),
    ]
    rates: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    server = Server(directory)
    for number in range(ROUNDS):
        for setting in settings if number % 2 == 0 else reversed(settings):
            edit_env(directory, **setting.changes)
            dflash("up", at=directory, timeout=900).succeeded()
            for name in setting.workloads:
                for streams, rate in _rates(server, workloads[name]):
                    rates[name, setting.title][streams].append(rate)
                    print(f"round {number + 1}, {setting.title}, {name}, {streams}: {rate:.1f}", flush=True)
    return rates


def _rates(server: Server, workload: Workload) -> Iterator[tuple[int, float]]:
    with server.connect() as endpoint:
        bodies = workload.bodies(endpoint.model, LIMITS)
        for streams, requests in REQUESTS.items():
            yield streams, measure(endpoint, bodies, concurrency=streams, requests=requests).median


def _drawn(measured: Mapping[tuple[str, str], Rates], proposed: Mapping[str, Mapping[str, str]], title: str) -> Table:
    others = ("plain", *(f"k={count}" for count in FIXED))
    drawn = Table("prompts", "streams", *others, TUNED, "of the best", "of plain", title=title, box=box.SIMPLE_HEAD)
    for name, settings in proposed.items():
        for streams in REQUESTS:
            cells = {one: statistics.median(measured[name, one][streams]) for one in (*others, TUNED)}
            best = max(cells[one] for one in others)
            ratios = (cells[TUNED] / best, cells[TUNED] / cells["plain"])
            figures = (*(f"{cell:.0f}" for cell in cells.values()), *(f"{ratio:.2f}" for ratio in ratios))
            drawn.add_row(name, str(streams), *figures)
        written = ", ".join(f"{key}={value}" for key, value in settings.items() if value)
        drawn.add_row(name, "", *[""] * len(others), written, "0.97 or more", "1.00 or more", end_section=True)
    return drawn

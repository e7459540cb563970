"""What Prometheus costs beside an engine: tokens per second while it reads every five seconds, and its disk per day."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.table import Table

from benchmarks.intervals import ratio_interval
from benchmarks.rows import Row
from dflash_deploy.assets import asset
from dflash_deploy.bench.load import measure
from dflash_deploy.bench.workload import load_prompts
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.monitoring.operations import export_monitoring
from dflash_deploy.features.monitoring.project import INTERVAL
from dflash_deploy.planning import plan_of
from dflash_deploy.startup.engine import endpoint_of
from tests.support.cli import dflash
from tests.support.commands import checked
from tests.support.debian import program
from tests.support.ports import free_port
from tests.support.procfs import Process, family_of
from tests.support.prometheus import load, prometheus

ENGINES = ("llamacpp", "vllm")
EVERY = 5
"""Seconds between two readings."""
CONCURRENCY = 2
ROUNDS = 12
"""A round of ten seconds differs from the next by 5 % on a quiet machine."""
IDLE_ROUNDS = 5
ROUND = 10
"""Seconds of a round: two readings."""

CAPTURED = 120
"""Readings that are kept, a second apart: as many samples as a whole chunk of Prometheus has."""
DAY = 86400
KEPT = 40
"""Days that `monitor up` keeps."""

_SAMPLE = re.compile(r'\{__name__="([^"]+)"(?:, )?(.*)\} (\S+) (\d+)')


@dataclass(frozen=True)
class Stored:
    """What Prometheus keeps of one engine: its series, and bytes of its blocks.

    `sample` is the size of a sample, `index` that of a series in the index of a block.
    """

    series: int
    sample: float
    index: float

    @property
    def per_day(self) -> float:
        """Bytes per day, at the interval of `monitor up`. Prometheus merges blocks to more than a day: one index."""
        return self.series * (DAY / INTERVAL * self.sample + self.index)


def rows() -> Iterator[Row]:
    """Tokens per second without Prometheus and beside it, in turns on one server, which shares its cores with both.

    Then the CPU time of both, for each token and while the engine is idle: on a busy machine it varies less.
    """
    for engine in ENGINES:
        yield from _costs(engine)


def _costs(engine: str) -> Iterator[Row]:
    with _started(engine) as (deployment, endpoint), tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        export_monitoring(deployment.directory, config, interval=EVERY)
        requests, port = _requests(endpoint), str(plan_of(deployment).settings.dflash_port)
        rates, times = _in_turns(config, ROUNDS, lambda: _under_load(endpoint, requests, port))
        (shares,) = _in_turns(config, IDLE_ROUNDS, lambda: (_share(port),))
    at = f"{engine} at concurrency {CONCURRENCY}"
    for what, unit, aim, (without, beside) in (
        (at, "tokens/s", "0.99 or more", rates),
        (f"{at}, CPU with Prometheus", "ms per token", "1.01 or less", times),
    ):
        yield Row(what, median(without), median(beside), unit, aim, ROUNDS, ratio_interval(without, beside))
    idle, watched = (median(side) for side in shares)
    yield Row(f"{engine}, idle, CPU with Prometheus", idle, watched, "% of a core", "1 more at most", IDLE_ROUNDS)


Sides = tuple[list[float], list[float]]
"""The values of a figure without Prometheus and beside it, by round."""


def _in_turns(config: Path, rounds: int, figures: Callable[[], Sequence[float]]) -> list[Sides]:
    """The values of each figure without Prometheus and beside it."""
    found: dict[bool, list[Sequence[float]]] = {False: [], True: []}
    for turn in range(rounds):
        # each is first equally often, because the first one affects the next
        for watched in (False, True) if turn % 2 else (True, False):
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                if watched:
                    stack.enter_context(_reading(config, Path(folder) / "data"))
                found[watched].append(figures())
    without, beside = ([[*values] for values in zip(*found[side], strict=True)] for side in (False, True))
    return [*zip(without, beside, strict=True)]


def _under_load(endpoint: Endpoint, requests: int, port: str) -> tuple[float, float]:
    """Tokens per second of a round, and milliseconds of CPU time for each token."""
    processes = _processes(port)
    before, began = _cpu_seconds(processes), time.monotonic()
    rate = _measure(endpoint, requests)
    # the round warms up with a few requests before its clock runs
    return rate, 1000 * (_cpu_seconds(processes) - before) / (rate * (time.monotonic() - began))


def _share(port: str) -> float:
    """Percent of a core that the engine at a port and each Prometheus of this program use in a round."""
    processes = _processes(port)
    before = _cpu_seconds(processes)
    time.sleep(ROUND)
    return (_cpu_seconds(processes) - before) / ROUND * 100


def _processes(port: str) -> list[Process]:
    """The processes of the engine at a port, and each Prometheus of this program."""

    def counts(one: Process) -> bool:
        # the last argument of the engine's supervisor is the address
        supervises = one.arguments[-1].endswith(f":{port}")
        return supervises or (one.name == "prometheus" and one.parent == os.getpid())

    return [*family_of(counts)]


def _cpu_seconds(processes: Iterable[Process]) -> float:
    """CPU time of processes since they started."""
    ticks = 0
    for one in processes:
        # the fields after the program's name, which may hold spaces: the 12th and 13th are its time and the kernel's
        fields = Path(f"/proc/{one.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _requests(endpoint: Endpoint) -> int:
    """Requests that take about as long as a round."""
    begun = time.monotonic()
    _measure(endpoint, requests := 4 * CONCURRENCY)
    return max(requests, round(requests * ROUND / (time.monotonic() - begun)))


@contextmanager
def _reading(config: Path, data: Path) -> Iterator[None]:
    """A Prometheus that has read the engine, until the block ends."""
    with prometheus(config / "prometheus.yml", data) as watching:
        if watching.missing(['up{job="dflash"} == 1']):
            raise SystemExit("Prometheus does not read the engine")
        yield


def _measure(endpoint: Endpoint, requests: int) -> float:
    prompts = load_prompts(asset("models/tiny/prompts.jsonl"), "long")
    bodies = [prompt.body(endpoint.model) for prompt in prompts]
    return measure(endpoint, bodies, concurrency=CONCURRENCY, requests=requests).median


def disk() -> Table:
    """Prometheus' disk per day: the series of the real engine under load times the bytes that a sample takes."""
    drawn = Table(
        "engine",
        "series",
        "bytes per sample",
        "of the index",
        "MB per day",
        f"GB in {KEPT} days",
        title="disk",
    )
    for engine in ENGINES:
        with _started(engine) as (deployment, endpoint), tempfile.TemporaryDirectory() as folder:
            stored = _stored(deployment, endpoint, Path(folder))
        day = stored.per_day
        cells = (f"{stored.sample:.2f}", f"{stored.index:.0f}", f"{day / 1e6:.1f}", f"{day * KEPT / 1e9:.2f}")
        drawn.add_row(engine, str(stored.series), *cells)
    return drawn


def _stored(deployment: Deployment, endpoint: Endpoint, place: Path) -> Stored:
    config, data = place / "config", place / "data"
    export_monitoring(deployment.directory, config, interval=1)
    with _reading(config, data), load(endpoint):
        time.sleep(CAPTURED + 5)
    dumped = checked(str(program("promtool")), "tsdb", "dump", str(data))
    series = len({line.rpartition("}")[0] for line in lines(dumped)})
    return Stored(series, *_sizes(lines(dumped), place))


def lines(dumped: str) -> list[str]:
    """The samples in what promtool dumps."""
    return [line for line in dumped.splitlines() if _SAMPLE.fullmatch(line)]


def _sizes(dumped: Iterable[str], place: Path) -> tuple[float, float]:
    """Bytes of a sample, and of a series in the index, in the block that Prometheus writes of these samples."""
    readings, blocks = place / "readings", place / "blocks"
    readings.write_text("".join(f"{line}\n" for line in respaced(dumped, INTERVAL)) + "# EOF\n", "utf-8")
    command = ("tsdb", "create-blocks-from", "openmetrics", str(readings), str(blocks))
    checked(str(program("promtool")), *command)
    (meta,) = blocks.glob("*/meta.json")
    counted = json.loads(meta.read_text("utf-8"))["stats"]
    chunks = sum(file.stat().st_size for file in (meta.parent / "chunks").iterdir())
    return chunks / counted["numSamples"], (meta.parent / "index").stat().st_size / counted["numSeries"]


def respaced(dumped: Iterable[str], interval: int) -> Iterator[str]:
    """Samples as OpenMetrics, those of each series that many seconds apart instead of one, from the same time on.

    They begin two hours after the epoch, where a block of Prometheus begins, and end within it.
    """
    position: Counter[tuple[str, str]] = Counter()
    for line in dumped:
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        name, labels, value, _ = found.groups()
        place = position[name, labels]
        position[name, labels] += 1
        if place < CAPTURED:
            yield f"{name}{{{labels.replace(', ', ',')}}} {value} {7200 + place * interval}"


@contextmanager
def _started(engine: str) -> Iterator[tuple[Deployment, Endpoint]]:
    """A native deployment of the tiny pair and its endpoint, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        options = ("--profile", "cpu", "--engine", engine, "--runtime", "native", "--port", str(free_port()))
        dflash("init", *options, at=directory).succeeded()
        try:
            dflash("up", at=directory).succeeded()
            deployment = Deployment(directory)
            with endpoint_of(deployment, plan_of(deployment)) as endpoint:
                yield deployment, endpoint
        finally:
            dflash("down", at=directory)

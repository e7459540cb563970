"""llama.cpp on the CPU: what its gateway costs beside a direct connection, and what the drafter gains."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import aiohttp

from benchmarks.rows import Row
from dflash_deploy.assets import asset
from dflash_deploy.bench.figures import at_concurrency
from dflash_deploy.bench.load import Load, measure
from dflash_deploy.bench.workload import load_prompts
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.plan.command import engine_command
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.engines.installed import WHEEL_SERVER
from dflash_deploy.startup.engine import endpoint_of
from tests.support.cli import dflash, edit_env
from tests.support.commands import checked
from tests.support.door import Door, opened
from tests.support.ports import free_port

STREAMS = 8  # without the drafter: with it, llama.cpp b11549 aborts at this concurrency (its release in the catalog)
ROUNDS = 9  # rounds of each side, in turns
CHUNKS, PAUSE = 4000, 0.001  # the events of a round, and the seconds between two writes of a stream
REPEATS = 5
CONCURRENCIES = (1, 2, 4)


class Unshared(Endpoint):
    """A client with a new connection for each request, as the gateway has: the server closes them while it is used."""

    def async_session(self, connections: int) -> aiohttp.ClientSession:
        """Return a session that shares no connection."""
        return aiohttp.ClientSession(
            f"{self.url}/",
            headers={**self._authorization, "Content-Type": "application/json", "Accept-Encoding": "identity"},
            connector=aiohttp.TCPConnector(limit=connections, force_close=True),
        )


def door() -> Iterator[Row]:
    """Tokens per second of streams through the gateway and without it: two servers with the same arguments."""
    prompts = load_prompts(asset("models/tiny/prompts.jsonl"), "long")
    rates: dict[str, list[float]] = {"direct": [], "through": []}
    with (
        _started(MAX_NUM_SEQS=str(STREAMS), DFLASH_DRAFTER="off") as deployment,
        _direct(deployment) as direct,
        endpoint_of(deployment, plan_of(deployment)) as through,
    ):
        sides = {"direct": direct, "through": through}
        bodies = [prompt.body(through.model) for prompt in prompts]
        for turn in range(ROUNDS):
            # each is first equally often, because the first one affects the next
            for name in sorted(sides, reverse=turn % 2 == 0):
                load = measure(sides[name], bodies, concurrency=STREAMS, requests=len(bodies))
                rates[name].append(load.median)
    yield Row(
        f"{STREAMS} streams, no drafter",
        median(rates["direct"]),
        median(rates["through"]),
        "tokens/s",
        "0.98 or more",
        ROUNDS,
    )


def chunks() -> Iterator[Row]:
    """The door's CPU time for each 1,000 events of llama.cpp's streams, as the kernel counts it."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as door:
        for together in (1, 8):
            rounds = [[_door_ms(door, streams, together) for streams in (1, STREAMS)] for _ in range(REPEATS + 1)]
            # the first one warms up
            one, many = (median(side) for side in zip(*rounds[1:], strict=True))
            yield Row(f"events in a write: {together}", one, many, "CPU ms per 1,000", "30 ms or less", REPEATS)


def instructions() -> Iterator[Row]:
    """The door's instructions for each event outside the kernel: the same on a busy machine. Needs valgrind."""
    for together in (1, 8):
        one, many = (_instructions(streams, together) for streams in (1, STREAMS))
        yield Row(f"instructions, events in a write: {together}", one, many, "1,000 per event", "", 1)


def _instructions(streams: int, together: int) -> float:
    """Thousands of instructions for each event."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"--vgdb-prefix={folder}/vgdb"
        counts = ("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/count")
        with opened(Path(folder), under=(*counts, place)) as door:
            # callgrind is slow: with long pauses, no event waits for the one before
            asked = [(events * together, streams, together, 0.03 * streams) for events in (40, 40, 280)]
            _stream(door, *asked[0])
            checked("callgrind_control", place, "--instr=on", str(door.process.pid))
            for one in asked[1:]:
                _stream(door, *one)
                checked("callgrind_control", place, "--dump", str(door.process.pid))
        few, many = (int(_TOTALS.findall(Path(folder, f"count.{dump}").read_text("utf-8"))[0]) for dump in (1, 2))
    return (many - few) / (240 * together) / 1000


_TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)


def _door_ms(door: Door, streams: int, together: int) -> float:
    """Milliseconds of the door's CPU time for each 1,000 events."""
    before = _nanoseconds(door)
    _stream(door, CHUNKS, streams, together, PAUSE)
    return (_nanoseconds(door) - before) / CHUNKS / 1000


def _stream(door: Door, events: int, streams: int, together: int, pause: float) -> None:
    """Let the door pass this many events on, in `streams` requests at the same time."""
    body = {"stream": True, "max_tokens": events // streams, "n": together, "pause": pause}
    with ThreadPoolExecutor(streams) as clients:
        asked = [clients.submit(door.request, "POST", "/v1/completions", json=body) for _ in range(streams)]
    seen = sum(one.result().text.count("word") for one in asked)
    if seen != events:
        raise SystemExit(f"{seen} of {events} events have passed the door")


def _nanoseconds(door: Door) -> int:
    """Time that the door's threads ran: the first field of the kernel's statistics of its scheduler."""
    tasks = Path(f"/proc/{door.process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks)


def drafts() -> Iterator[Row]:
    """Tokens per second with the drafter and without it, one row for each concurrency."""
    with _started() as deployment:
        drafted = _measured(deployment)
        edit_env(deployment.directory, DFLASH_DRAFTER="off")
        dflash("up", at=deployment.directory).succeeded()
        plain = _measured(Deployment(deployment.directory))
    for one, other in zip(plain, drafted, strict=True):
        length = (other.counted.acceptance_length if other.counted else None) or 0.0
        what = f"{at_concurrency(one.concurrency)}, acceptance length {length:.2f}"
        yield Row(what, one.median, other.median, "tokens/s", "", REPEATS)


def _measured(deployment: Deployment) -> list[Load]:
    prompts = load_prompts(asset("models/tiny/prompts.jsonl"), "long")
    with endpoint_of(deployment, plan_of(deployment)) as endpoint:
        bodies = [prompt.body(endpoint.model) for prompt in prompts]
        return [
            measure(endpoint, bodies, concurrency=concurrency, requests=len(bodies), repeats=REPEATS)
            for concurrency in CONCURRENCIES
        ]


@contextmanager
def _started(**settings: str) -> Iterator[Deployment]:
    """A native deployment of the tiny pair with these settings, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        options = ("--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", "--port", str(free_port()))
        dflash("init", *options, at=directory).succeeded()
        edit_env(directory, **settings)
        try:
            dflash("up", at=directory).succeeded()
            yield Deployment(directory)
        finally:
            dflash("down", at=directory)


@contextmanager
def _direct(deployment: Deployment) -> Iterator[Endpoint]:
    """A second server with the same arguments, which listens on a port itself and has the same key."""
    plan, port = plan_of(deployment), free_port()
    command = [
        sys.executable,
        "-m",
        WHEEL_SERVER,
        *engine_command(plan)[1:],
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    environment = {**os.environ, "LLAMA_API_KEY": deployment.key.reveal()}
    with (
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
        endpoint_of(deployment, plan) as through,
        Unshared(f"http://127.0.0.1:{port}", deployment.key, through.model) as direct,
    ):
        try:
            while not direct.alive():
                if process.poll() is not None:
                    raise SystemExit("llama.cpp's server ended before it was ready")
                time.sleep(0.2)
            yield direct
        finally:
            process.terminate()

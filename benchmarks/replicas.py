"""Two real engines behind door and router: over one, over direct, and what clients see when one of them fails.

    python -m benchmarks replicas replicas-vllm replica-faults

The tiny pair with llama.cpp or vLLM, each engine with its own processor core. The clients run on the same cores.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx
from rich.table import Table

from benchmarks.intervals import ratio_interval
from benchmarks.rows import Row
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.plan.replicas import engine_port
from dflash_deploy.planning import plan_of
from dflash_deploy.startup.engine import endpoint_of
from tests.support.askers import Askers, asking
from tests.support.cli import dflash
from tests.support.llamacpp_native import server_of
from tests.support.ports import free_port
from tests.support.proxies import FailsAndSaysHealthy
from tests.support.two_engines import first_engine_behind

CLIENTS = 8
CROWD = 16
ROUND = 8.0
"""Seconds of one measurement."""
REPEATS = 5
TURNS, CONVERSATIONS = 5, 8
AT_ONCE = 20
LEAST = 500
"""Requests around a change that must not fail."""
FAILS = 20.0
"""Seconds in which an engine answers 500."""
PAUSE = 5.0
"""Seconds without a request after which an engine counts as out."""
SHORT = 6
"""Tokens of their answers."""


def rows(engine: str = "llamacpp") -> Iterator[Row]:
    """Throughput through door and router over direct, and of two engines over one. Then a rolling restart."""
    with deployed(2, engine) as directory:
        urls = {"direct": _engine_url(directory, 1), "door": _url(directory)}
        both = _in_turns(directory, urls)
        yield _of_rates(f"two engines through the door over one direct, {CLIENTS} clients", both, "-")
        kept, turns = _affinity(directory)
        yield Row("turns on the engine of the turn before", turns, kept, "turns", "1.00", 1)
        yield Row(f"{AT_ONCE} at once: the busier engine", AT_ONCE / 2, _busier(directory), "requests", "1.00", 1)
        asked = _changed(directory, "restart")
        print(f"errors around `restart`: {_said(asked)}", flush=True)
        what = "`restart`, one engine at a time: failed requests of all"
        yield Row(what, len(asked.asked), len(asked.errors()), "requests", "0.00", 1)
        dflash("down", "--replica", "2", at=directory).succeeded()
        one = _in_turns(directory, urls)
        yield _of_rates(f"door and router over direct, one engine, {CLIENTS} clients", one, "0.97")


def _of_rates(what: str, rates: tuple[list[float], list[float]], aim: str) -> Row:
    theirs, ours = rates
    return Row(what, median(theirs), median(ours), "answers/s", aim, REPEATS, ratio_interval(theirs, ours))


def _in_turns(directory: Path, urls: dict[str, str]) -> tuple[list[float], list[float]]:
    """Whole answers per second at each of two addresses, in turns. The first turn warms up."""
    rates: dict[str, list[float]] = {name: [] for name in urls}
    for turn in range(-1, REPEATS):
        # each is first equally often, because the first one affects the next
        for name in sorted(urls, reverse=turn % 2 == 0):
            rate = _rate(directory, urls[name])
            rates[name] += [rate] if turn >= 0 else []
    first, second = rates.values()
    return first, second


def _changed(directory: Path, *command: str) -> Askers:
    """The requests around a command, LEAST or more."""
    askers = _askers(directory, _url(directory))
    askers.max_tokens = SHORT
    with asking(askers, CROWD):
        dflash(*command, at=directory).succeeded()
        while len(askers.asked) < LEAST:
            time.sleep(0.5)
    return askers


def faults() -> Table:
    """What 16 clients see when one of two engines is killed, hangs or restarts."""
    drawn = Table("what happens to one engine", "requests", "errors", "out after", "back after", title="replica-faults")
    with deployed(2) as directory:
        for what, begin, end in (
            ("killed (SIGKILL), then `up`", _kill, lambda: dflash("up", at=directory).succeeded()),
            ("hangs (SIGSTOP), then continues", _stop, lambda: _go_on(directory)),
        ):
            askers = _askers(directory, _url(directory))
            with asking(askers, CROWD):
                time.sleep(ROUND)
                began = time.monotonic()
                begin(directory)
                out = _until(directory, began, healthy=False)
                time.sleep(ROUND)
                again = time.monotonic()
                end()
                back = _until(directory, again, healthy=True)
                time.sleep(ROUND)
            drawn.add_row(what, str(len(askers.asked)), _said(askers), f"{out:.0f} s", f"{back:.0f} s")
        drawn.add_row(*_failing(directory))
        for command in (("restart", "--replica", "1"), ("restart",), ("keys", "rotate")):
            askers = _changed(directory, *command)
            drawn.add_row(f"`{' '.join(command)}`", str(len(askers.asked)), _said(askers), "-", "-")
    return drawn


def _failing(directory: Path) -> tuple[str, ...]:
    """What clients see of an engine that says it is healthy and answers each request with 500, then recovers."""
    failing, asked = FailsAndSaysHealthy.failing, FailsAndSaysHealthy.asked
    askers = _askers(directory, _url(directory))
    with first_engine_behind(directory, FailsAndSaysHealthy), asking(askers, CROWD):
        time.sleep(ROUND)
        began = time.monotonic()
        failing.set()
        time.sleep(FAILS)
        failing.clear()
        again = time.monotonic()
        time.sleep(2 * FAILS)
    failed = [at - began for at, fails in asked if fails]
    # the first pause is the one in which it gets no requests
    out = next((one for one, next_one in pairwise([*failed, FAILS]) if next_one - one > PAUSE), FAILS)
    back = min((at - again for at, fails in asked if not fails and at > again), default=float("nan"))
    what = f"answers {len(failed)} requests with 500 in {FAILS:.0f} s, then recovers"
    return what, str(len(askers.asked)), _said(askers), f"{out:.1f} s", f"{back:.0f} s"


@contextmanager
def deployed(count: int, engine: str = "llamacpp") -> Iterator[Path]:
    """A native deployment of that many engines, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        told = ("--profile", "cpu", "--engine", engine, "--runtime", "native", "--replicas", str(count))
        dflash("init", *told, "--port", str(free_port()), at=directory).succeeded()
        dflash("up", at=directory).succeeded()
        try:
            yield directory
        finally:
            dflash("down", at=directory)


def _url(directory: Path) -> str:
    deployment = Deployment.existing(directory)
    with endpoint_of(deployment, plan_of(deployment)) as endpoint:
        return endpoint.url


def _engine_url(directory: Path, number: int) -> str:
    port = int(Deployment.existing(directory).values["DFLASH_PORT"])
    return f"http://127.0.0.1:{engine_port(port, number)}"


def _askers(directory: Path, url: str) -> Askers:
    return Askers(url, "tiny", lambda: str(Deployment(directory).key.reveal()))


def _rate(directory: Path, url: str) -> float:
    """Whole answers per second."""
    askers, began = _askers(directory, url), time.monotonic()
    with asking(askers, CLIENTS):
        time.sleep(ROUND)
    if askers.errors():
        raise SystemExit(f"requests failed without a cause: {askers.outcomes()}")
    return len(askers.asked) / (time.monotonic() - began)


def _counts(directory: Path) -> dict[int, int]:
    """The requests that each engine has answered."""
    key = Deployment(directory).key.reveal()
    found = {}
    for number in (1, 2):
        headers = {"Authorization": f"Bearer {key}"}
        text = httpx.get(f"{_engine_url(directory, number)}/metrics", headers=headers, timeout=60).text
        lines = (line for line in text.splitlines() if line.startswith("dflash_key_requests_total{"))
        found[number] = sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if 'name="owner"' in line)
    return found


def _affinity(directory: Path) -> tuple[int, int]:
    """How many later turns of conversations were answered by the engine of the turn before."""
    kept = 0
    key, url = Deployment(directory).key.reveal(), _url(directory)
    for number in range(CONVERSATIONS):
        messages = [{"role": "user", "content": f"Conversation {number}. " + "Count from 1 to 10. " * 8}]
        engines = []
        for _ in range(TURNS):
            before = _counts(directory)
            body = {"model": "tiny", "messages": messages, "max_tokens": 8}
            headers = {"Authorization": f"Bearer {key}"}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60).json()
            after = _counts(directory)
            # reading the metrics counts too, on both engines alike
            engines.append(max(after, key=lambda one: after[one] - before[one]))
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "Continue."}]
        kept += sum(one == other for one, other in pairwise(engines))
    return kept, CONVERSATIONS * (TURNS - 1)


def _busier(directory: Path) -> int:
    """The requests of the busier engine, of AT_ONCE different ones at the same time."""
    before = _counts(directory)
    askers = _askers(directory, _url(directory))
    askers.turns = 1
    with asking(askers, AT_ONCE):
        pass
    after = _counts(directory)
    return max(after[number] - before[number] for number in after) - 1


def _kill(directory: Path) -> None:
    os.kill(server_of(directory, 1), signal.SIGKILL)


def _stop(directory: Path) -> None:
    os.kill(server_of(directory, 1), signal.SIGSTOP)


def _go_on(directory: Path) -> None:
    os.kill(server_of(directory, 1), signal.SIGCONT)


def _until(directory: Path, began: float, *, healthy: bool) -> float:
    """Seconds until the router says so of the first engine."""
    url = _engine_url(directory, 1)
    while True:
        seen = json.loads((directory / ".dflash" / "router" / "seen.json").read_text())["workers"]
        if any(worker["url"] == url and worker["healthy"] for worker in seen) == healthy:
            return time.monotonic() - began
        time.sleep(0.2)


def _said(askers: Askers) -> str:
    found = [asked.outcome for asked in askers.errors()]
    return ", ".join(f"{found.count(one)} x {one}" for one in sorted(set(found))) or "0"

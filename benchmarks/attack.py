"""An endpoint under attack beside eight honest clients, and mixed requests by the ten thousand.

    python -m benchmarks attack mixed mixed-vllm

The attacks are those of tests/support/attackers.py.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.table import Table

from dflash_deploy.deployment.directory import Deployment
from tests.support.attacked import Endpoint, files_of, peak
from tests.support.attackers import attacking
from tests.support.cli import dflash
from tests.support.honest import Told, load
from tests.support.llamacpp_native import processes, server_of
from tests.support.ports import free_port

HONEST = 8
QUIET, ATTACKED = 60.0, 600.0  # seconds before and under attack
ROWS = (
    *(("seconds", ""), ("requests", ""), ("failed", "none"), ("answers that differ", "none")),
    *(("seconds of an answer, median", ""), ("seconds of /health, most", "below 1")),
    *(("gateway, most MB", "flat"), ("engine, most MB", "flat"), ("files of the gateway", "flat")),
)
MIXED_CLIENTS = 16
MIXED = {"llamacpp": 100_000, "vllm": 10_000}  # requests of each engine


@contextmanager
def deployed(engine: str = "llamacpp") -> Iterator[Path]:
    """A native deployment of an engine, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        told = ("--profile", "cpu", "--engine", engine, "--runtime", "native")
        dflash("init", *told, "--port", str(free_port()), at=directory).succeeded()
        dflash("up", at=directory).succeeded()
        try:
            yield directory
        finally:
            dflash("down", at=directory)


def table() -> Table:
    """What eight honest clients and the processes show before the attack and under it."""
    with deployed() as directory:
        endpoint, engine = endpoint_at(directory), server_of(directory)
        (gateway,) = [pid for pid, line in processes(directory).items() if " -m dflash_deploy.serve.door " in line]

        def shown(seconds: float) -> list[str]:
            told = load(endpoint, HONEST, _lasts(seconds))
            _show(drawn, told)
            counts = (int(seconds), told.asked, told.failed.total(), told.changed.total())
            sizes = (f"{peak(process) / 1000:.0f}" for process in (gateway, engine))
            return [*map(str, counts), f"{told.median:.3f}", f"{max(told.health):.3f}", *sizes, str(files_of(gateway))]

        drawn = Table("what", "quiet", "attacked", "aim", title="attack: eight honest clients beside it")
        quiet = shown(QUIET)
        with attacking(endpoint):
            attacked = shown(ATTACKED)
    for (what, aim), *cells in zip(ROWS, quiet, attacked, strict=True):
        drawn.add_row(what, *cells, aim)
    return drawn


def mixed(engine: str) -> Table:
    """Texts, pictures, streams, cut streams, tools and JSON at the same time, with drafts: answers that differ."""
    drawn = Table("engine", "clients", "requests", "failed", "answers that differ", title="mixed, aim: none differs")
    with deployed(engine) as directory:
        told = load(endpoint_at(directory), MIXED_CLIENTS, lambda told: told.asked < MIXED[engine])
    counts = (told.asked, told.failed.total(), told.changed.total())
    drawn.add_row(engine, str(MIXED_CLIENTS), *map(str, counts))
    _show(drawn, told)
    return drawn


def endpoint_at(directory: Path) -> Endpoint:
    """The endpoint of a native deployment."""
    deployment = Deployment.existing(directory)
    return Endpoint(f"http://127.0.0.1:{deployment.values['DFLASH_PORT']}", deployment.key.reveal())


def _lasts(seconds: float) -> Callable[[Told], bool]:
    until = time.monotonic() + seconds
    return lambda _: time.monotonic() < until


def _show(drawn: Table, told: Told) -> None:
    seen = [*told.failed.most_common(3), *told.changed.most_common(3)]
    drawn.caption = "; ".join([*filter(None, [str(drawn.caption or "")]), *map(str, seen)])

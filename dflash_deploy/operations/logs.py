"""`logs`: what the engine writes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.planning import plan_to_stop
from dflash_deploy.redact import redact_by_shape
from dflash_deploy.runtime.protocol import LogPage, ReadLog
from dflash_deploy.runtime.select import door_of, runtime_for

POLL = 0.5  # seconds between two reads of a log that is followed


def log(directory: Path, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
    """Lines of the engine's log, redacted: all or the last `tail`, and with `follow` new ones until the engine ends.

    With a door each line begins with the name of its process, and `tail` counts for each of them. Raises NoDeployment,
    and EngineMissing if the log cannot be read.
    """
    deployment = Deployment.started(directory)
    plan = plan_to_stop(deployment)
    runtime, door = runtime_for(deployment, plan), door_of(deployment, plan)
    readers = {"": runtime.read_log} if door is None else {"engine": runtime.read_log, "door": door.read_log}
    page = interleaved(readers, tail=tail)
    yield from map(redact_by_shape, page.lines)
    alive = follow
    while alive:
        time.sleep(POLL)
        alive = runtime.state().phase in {"running", "restarting", "paused"}
        page = interleaved(readers, page.cursor)
        yield from map(redact_by_shape, page.lines)


def interleaved(readers: Mapping[str, ReadLog], cursor: str = "", *, tail: int | None = None) -> LogPage:
    """Return the lines of all logs after `cursor`, which holds a cursor for each; of each only the last `tail`.

    An empty name is not written before the lines.
    """
    after = dict(part.split("=", 1) for part in cursor.split("|") if part)
    lines: list[str] = []
    for name, read in readers.items():
        page = read(after.get(name, ""))
        after[name] = page.cursor
        shown = page.lines if tail is None else page.lines[-tail:] if tail else ()
        lines += (f"{name} | {line}" if name else line for line in shown)
    return LogPage(tuple(lines), "|".join(f"{name}={place}" for name, place in after.items()))

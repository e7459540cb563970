"""`logs`: what the engine writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.planning import plan_to_stop
from dflash_deploy.redact import redact_by_shape
from dflash_deploy.runtime.published import interleaved
from dflash_deploy.runtime.select import logs_of, runtime_for

POLL = 0.5
"""Seconds between two reads of a log that is followed."""


def log(directory: Path, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
    """Lines of the engine's log, redacted: all or the last `tail`, and with `follow` new ones until the engine ends.

    With a door each line begins with the name of its process, and `tail` counts for each of them. Raises NoDeployment,
    and EngineMissing if the log cannot be read.
    """
    deployment = Deployment.existing(directory, check=False)
    runtime = runtime_for(deployment, plan_to_stop(deployment))
    page = interleaved(logs_of(runtime), tail=tail)
    yield from map(redact_by_shape, page.lines)
    alive = follow
    while alive:
        time.sleep(POLL)
        alive = runtime.state().phase in {"running", "restarting", "paused"}
        page = interleaved(logs_of(runtime), page.cursor)
        yield from map(redact_by_shape, page.lines)

"""`status --watch`: readings of an engine, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.client import Endpoint, EndpointError
from dflash_deploy.deployment import Deployment
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import Redact
from dflash_deploy.runtime import Runtime, runtime_for
from dflash_deploy.startup import endpoint_of
from dflash_deploy.startup.members import whole_endpoint
from dflash_deploy.startup.watch import Reading, Watch, Window

METRICS_TIMEOUT = 5.0
"""Seconds for /metrics; after that the engine counts as not responding."""


@dataclass(frozen=True)
class Watched:
    """A deployment under watch. `redact` takes its secrets out of text."""

    endpoint: Endpoint
    redact: Redact
    _runtime: Runtime
    _watch: Watch

    def windows(self, every: float, count: int | None = None) -> Iterator[Window]:
        """A window every `every` seconds, endless or `count` times."""
        done = 0
        while count is None or done < count:
            if done:
                time.sleep(every)
            yield self._watch.see(self._reading())
            done += 1

    def _reading(self) -> Reading:
        state = self._runtime.state()
        try:
            metrics = self.endpoint.metrics() if state.phase == "running" else None
        except EndpointError:
            metrics = None
        return Reading(time.monotonic(), state.phase, state.identity, metrics)


@contextmanager
def watch(directory: Path) -> Iterator[Watched]:
    """Watch the engine of a deployment for as long as the block runs. Raises NoDeployment, SettingsRefused."""
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    with (
        whole_endpoint(deployment, plan)
        if plan.settings.several_engines
        else endpoint_of(deployment, plan, timeout=METRICS_TIMEOUT)
    ) as endpoint:
        yield Watched(endpoint, deployment.redact, runtime_for(deployment, plan), Watch())

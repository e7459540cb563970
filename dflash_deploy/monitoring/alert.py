"""One alert: the condition, how long it lasts, and the runbook: cause, what to check, the command that helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dflash_deploy.monitoring.labels import DEPLOYMENT
from dflash_deploy.monitoring.limits import limit

Severity = Literal["page", "warning"]
"""`page`: requests fail or soon will; `warning`: it is slower than it could be, or will fail if nothing is done."""

RUNBOOK = "https://github.com/dflash-deploy/dflash-deploy/blob/main/docs/reference/alerts.md"


@dataclass(frozen=True)
class Alert:
    """One alert and its runbook. `lasts` is how long the condition holds before the alert fires, as in Prometheus.

    `by_restart`: a restart of the engine can cause it, so the commands that restart one silence it.
    """

    name: str
    expr: str
    lasts: str
    severity: Severity
    summary: str
    cause: str
    check: str
    command: str
    needs: str = ""
    by_restart: bool = True

    @property
    def runbook(self) -> str:
        """The address of the runbook."""
        return f"{RUNBOOK}#{self.name.lower()}"


def beyond(series: str, comparison: str, name: str) -> str:
    """The condition that a series is beyond a limit of its deployment."""
    return f"{series} {comparison} on ({DEPLOYMENT}) group_left () {limit(name)}"

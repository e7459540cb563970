"""The rules of one deployment: `monitoring/` has the files, and here they are read and filled in.

`rules.yaml` records series with the same names for all engines, and `alerts.yaml` compares them with limits. The limits
of one deployment are recording rules too, so that the alerts are the same for all deployments.

The baseline of a deployment is also a recording rule: its time per output token without speculative decoding.
`bench --baseline` measures that time at some concurrencies. Between two of them it is on the line through both, beyond
them it is the nearest one. So each engine is compared at the concurrency that it has, not at the one of the benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from itertools import pairwise
from string import Template
from typing import Any

import yaml

from dflash_deploy.assets import asset_text
from dflash_deploy.errors import DOCS
from dflash_deploy.intake.parse import parse_packaged_yaml

FOLDER = "monitoring"
"""The folder of rules and dashboards, beside the package or in the wheel."""

DEPLOYMENT, REPLICA = "deployment", "replica"
"""Labels of an engine: the name of its deployment, and its number from 1."""

RUNBOOK = f"{DOCS}/reference/alerts.md"

RESTART_LOOP = "RestartLoop"
RESTARTS, RESTART_WINDOW = 3, timedelta(hours=1)
"""More restarts than that within this time are a loop; a health check restarts an engine as often within an hour."""

BASELINE, CONCURRENCY = "dflash:baseline:tpot_seconds", "dflash:concurrency"
"""The series of the baseline, and the one that it reads."""

SPEEDUP = "dflash:speedup_over_plain"
"""The series that compares an engine with its baseline."""

GIB = 1 << 30
HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True)
class Alert:
    """One alert of `alerts.yaml`. `needs`: what is read besides the engines; empty: the alert is about one engine.

    `by_restart`: a restart of the engine can cause it, so the commands that restart one silence it.
    """

    name: str
    needs: str
    by_restart: bool


@cache
def alerts() -> tuple[Alert, ...]:
    """All alerts, in the order of the file."""
    found = ((rule["alert"], rule["annotations"]) for group in _groups("alerts.yaml") for rule in group["rules"])
    return tuple(Alert(name, said.get("needs", ""), said.get("by_restart") != "no") for name, said in found)


@dataclass(frozen=True)
class MonitoringLimits:
    """The limits that differ between deployments. `drafts` is 1 if the deployment makes drafts, else 0."""

    queue: int
    drafts: int
    ttft_seconds: float = 2.0
    memory_available_bytes: float = 1.0 * GIB
    certificate_seconds: float = 7.0 * DAY


def limits(*, sequences: int, speculating: bool, unified: bool, private_authority: bool = False) -> MonitoringLimits:
    """The limits of a deployment that runs `sequences` requests together.

    `private_authority`: no public authority signs its certificate.
    """
    return MonitoringLimits(
        sequences,
        int(speculating),
        5.0 if unified else 2.0,
        4.0 * GIB if unified else 1.0 * GIB,
        2 * HOUR if private_authority else 7.0 * DAY,
    )


def limits_file(deployment: str, of: MonitoringLimits) -> str:
    """`limits.yaml`: the limits of a deployment as recording rules."""
    values = {name: f"{value:.15g}" for name, value in asdict(of).items()}
    return Template(asset_text(FOLDER, "limits.yaml")).substitute(values, deployment=deployment)


def rule_groups(deployment: str, of: MonitoringLimits) -> tuple[dict[str, Any], ...]:
    """All groups of rules of one deployment: recorded series, alerts, and its limits."""
    written = parse_packaged_yaml(limits_file(deployment, of))["groups"]
    return (*_groups("rules.yaml"), *_groups("alerts.yaml"), *written)


def _groups(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parse_packaged_yaml(asset_text(FOLDER, name))["groups"]
    return found


def baseline_file(deployment: str, tpot_seconds: Mapping[int, float]) -> str:
    """`baseline.yaml`: the time per output token without drafts as a recording rule; without any it has no rule."""
    rule = {"record": BASELINE, "expr": _expr(deployment, tpot_seconds)} if tpot_seconds else None
    return dumped({"groups": [{"name": f"dflash-baseline-{deployment}", "rules": [rule]}] if rule else []})


def dumped(document: Mapping[str, Any]) -> str:
    """A document as YAML, with keys in their order."""
    return yaml.safe_dump(document, sort_keys=False, width=1000, allow_unicode=True)


def _expr(deployment: str, tpot_seconds: Mapping[int, float]) -> str:
    """Lines from point to point: the first time, and the change of slope at each concurrency."""
    here = f'{CONCURRENCY}{{{DEPLOYMENT}="{deployment}"}}'
    changes = (f"{change:.6g} * clamp_min({here} - {at}, 0)" for at, change in _bends(tpot_seconds))
    return " + ".join((f"{tpot_seconds[min(tpot_seconds)]:.6g}", *changes))


def _bends(tpot_seconds: Mapping[int, float]) -> Iterator[tuple[int, float]]:
    """Each concurrency with the change of slope there: below the first and above the last one the line is level."""
    known = sorted(tpot_seconds.items())
    slopes = [0.0, *((after - time) / (there - at) for (at, time), (there, after) in pairwise(known)), 0.0]
    for (at, _), (before, behind) in zip(known, pairwise(slopes), strict=True):
        yield at, behind - before

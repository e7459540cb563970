"""The HTTP APIs of Prometheus and Alertmanager, as far as `monitor` uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from dflash_deploy.client.exposition import read_samples
from dflash_deploy.intake.answers import Answer, ForeignDocument, fetch_answer, new_client

TIMEOUT = 30.0
"""Seconds for an answer of this machine."""


class _Alert(ForeignDocument):
    labels: dict[str, str]
    state: str


class _Alerts(ForeignDocument):
    alerts: list[_Alert]


class _AlertsAnswer(ForeignDocument):
    data: _Alerts


class _Target(ForeignDocument):
    labels: dict[str, str]
    health: str
    lastError: str = ""  # noqa: N815 - Prometheus's name


class _Targets(ForeignDocument):
    activeTargets: list[_Target]  # noqa: N815 - Prometheus's name


class _TargetsAnswer(ForeignDocument):
    data: _Targets


@dataclass(frozen=True)
class ScrapedTarget:
    """A target that Prometheus reads. `health` is `up`, `down` or, before the first reading, `unknown`."""

    address: str
    health: str
    problem: str


@dataclass(frozen=True)
class Notifications:
    """Notifications that receivers accepted, and tries that failed; Alertmanager repeats those."""

    accepted: int
    failed_tries: int


# `alertmanager_notifications_total` also counts one before it is sent
_TRIES = "alertmanager_notification_requests_total"
_FAILED = "alertmanager_notification_requests_failed_total"


class MonitoringApi:
    """A client of one of the two. Methods raise httpx.HTTPError without an answer, and Invalid for a wrong one."""

    def __init__(self, address: str) -> None:
        """`address` is HOST:PORT."""
        self._url = f"http://{address}"
        # not through a proxy of the environment: it is on this machine
        self._client = new_client(trust_env=False, timeout=TIMEOUT)

    def __enter__(self) -> MonitoringApi:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def ready(self) -> bool:
        """Whether it has started."""
        try:
            return self._ask("GET", "/-/ready").succeeded
        except httpx.TransportError:
            return False

    def firing(self) -> list[str]:
        """The names of the alerts that fire in Prometheus."""
        answer = self._ask("GET", "/api/v1/alerts").document(_AlertsAnswer)
        return sorted({one.labels.get("alertname", "") for one in answer.data.alerts if one.state == "firing"})

    def targets(self) -> list[ScrapedTarget]:
        """What Prometheus reads."""
        answer = self._ask("GET", "/api/v1/targets").document(_TargetsAnswer)
        return [
            ScrapedTarget(one.labels.get("instance", ""), one.health, one.lastError)
            for one in answer.data.activeTargets
        ]

    def post_alert(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
        """Give Alertmanager an alert; return whether it accepted it."""
        body = [{"labels": dict(labels), "annotations": dict(annotations)}]
        return self._ask("POST", "/api/v2/alerts", json=body).succeeded

    def notifications(self) -> Notifications:
        """What Alertmanager has sent to receivers since its start."""
        counts = dict.fromkeys((_TRIES, _FAILED), 0)
        for sample in read_samples(self._ask("GET", "/metrics").text):
            if sample.name in counts:
                counts[sample.name] += int(sample.value)
        return Notifications(counts[_TRIES] - counts[_FAILED], counts[_FAILED])

    def _ask(self, method: str, path: str, **options: Any) -> Answer:
        return fetch_answer(
            self._client, self._client.build_request(method, f"{self._url}{path}", **options), seconds=TIMEOUT
        )

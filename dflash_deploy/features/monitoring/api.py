"""The HTTP APIs of Prometheus and Alertmanager, as far as `monitor` uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import ConfigDict, RootModel

from dflash_deploy.document import Documented
from dflash_deploy.intake.answers import Answer, ForeignDocument, fetch_answer, new_client
from dflash_deploy.intake.parse import Invalid


class _Matcher(ForeignDocument):
    name: str
    value: str


class _State(ForeignDocument):
    state: str


class _Silence(ForeignDocument):
    id: str
    status: _State
    matchers: list[_Matcher]
    createdBy: str  # noqa: N815 - Alertmanager's name


class _Silences(RootModel[list[_Silence]]):
    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)


TIMEOUT = 30.0
"""Seconds for an answer of this machine."""


LOOK_BACK = 240
"""Seconds for which a value of Prometheus counts; its own limit is 300."""


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


class _Series(ForeignDocument):
    metric: dict[str, str]
    values: list[list[float | str]]


class _Range(ForeignDocument):
    result: list[_Series]


class _RangeAnswer(ForeignDocument):
    data: _Range


@dataclass(frozen=True)
class ScrapedTarget(Documented):
    """What Prometheus reads."""

    kind: str
    """What it is: `engine`; `node` and `gpu` are exporters, `endpoint` is it as clients reach it."""
    address: str
    """Its address, as HOST:PORT; of an endpoint its URL."""
    health: str
    """Whether the last reading succeeded, `up` or `down`; `unknown` before the first one."""
    problem: str
    """Why the last reading failed; empty if it did not."""


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

    def alerts_between(self, since: datetime, until: datetime, step: int) -> list[tuple[str, str, list[float]]]:
        """Name and instance of each alert that fired, with the times at which it did, every `step` seconds.

        If `step` is longer than LOOK_BACK, these are the times within `step` seconds before which it did.
        """
        fired = 'ALERTS{alertstate="firing"}'
        asked = {
            # an alert between two times that are far apart is found too
            "query": f"max_over_time({fired}[{step}s])" if step > LOOK_BACK else fired,
            "start": str(since.timestamp()),
            "end": str(until.timestamp()),
            "step": str(step),
        }
        answer = self._ask("GET", "/api/v1/query_range", params=asked).document(_RangeAnswer)
        return [
            (
                one.metric.get("alertname", ""),
                one.metric.get("instance", ""),
                [float(sample[0]) for sample in one.values],
            )
            for one in answer.data.result
        ]

    def targets(self, job: str) -> list[ScrapedTarget]:
        """What Prometheus reads. `job` is the name of the engines' job, with which the others begin."""
        answer = self._ask("GET", "/api/v1/targets").document(_TargetsAnswer)
        return [
            ScrapedTarget(
                one.labels.get("job", "").removeprefix(job).removeprefix("-") or "engine",
                one.labels.get("instance", ""),
                one.health,
                one.lastError,
            )
            for one in answer.data.activeTargets
        ]

    def post_alert(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
        """Give Alertmanager an alert; return whether it accepted it."""
        body = [{"labels": dict(labels), "annotations": dict(annotations)}]
        return self._ask("POST", "/api/v2/alerts", json=body).succeeded

    def silence(self, labels: Mapping[str, str], lasts: timedelta, author: str, comment: str) -> None:
        """Let Alertmanager send no alerts whose labels match these patterns. Raises Invalid if it refuses."""
        now = datetime.now(UTC)
        body = {
            "matchers": [
                {"name": name, "value": value, "isRegex": True, "isEqual": True} for name, value in labels.items()
            ],
            "startsAt": now.isoformat(),
            "endsAt": (now + lasts).isoformat(),
            "createdBy": author,
            "comment": comment,
        }
        answer = self._ask("POST", "/api/v2/silences", json=body)
        if not answer.succeeded:
            raise Invalid(f"HTTP {answer.status}: {answer.text[:200]}")

    def end_silences(self, labels: Mapping[str, str], author: str) -> None:
        """End the silences in force of an author that have these labels."""
        for one in self._ask("GET", "/api/v2/silences").document(_Silences).root:
            named = {each.name: each.value for each in one.matchers}
            if one.status.state == "active" and one.createdBy == author and labels.items() <= named.items():
                self._ask("DELETE", f"/api/v2/silence/{quote(one.id, safe='')}")

    def _ask(self, method: str, path: str, **options: Any) -> Answer:
        return fetch_answer(
            self._client, self._client.build_request(method, f"{self._url}{path}", **options), seconds=TIMEOUT
        )

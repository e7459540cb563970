"""The HTTP APIs of Prometheus and Alertmanager, as far as `monitor` uses them.

A silence is as in Alertmanager's API: what it matches, and from when until when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import ConfigDict, RootModel

from dflash_deploy.client.metrics import read_samples
from dflash_deploy.intake.answers import Answer, ForeignDocument, fetch_answer, new_client
from dflash_deploy.intake.parse import Invalid

ALERT_NAME = "alertname"


@dataclass(frozen=True)
class Matcher:
    """A label that an alert must have. `pattern`: the value is a regular expression for the whole label."""

    name: str
    value: str
    pattern: bool = False


@dataclass(frozen=True)
class AlertSilence:
    """Alerts that match are sent to no receiver between two times. `id` is Alertmanager's; empty before it has it."""

    matchers: tuple[Matcher, ...]
    begins: datetime
    ends: datetime
    author: str
    comment: str
    id: str = ""

    @property
    def alerts(self) -> tuple[str, ...]:
        """The names of the alerts; empty: all of the deployment."""
        return tuple(name for one in self.matchers if one.name == ALERT_NAME for name in one.value.split("|"))

    def until(self, ends: datetime) -> AlertSilence:
        """The same with another end."""
        return replace(self, ends=ends)

    def request(self) -> dict[str, Any]:
        """The body with which Alertmanager makes it, or changes the one with this id."""
        matchers = [
            {"name": one.name, "value": one.value, "isRegex": one.pattern, "isEqual": True} for one in self.matchers
        ]
        body = {
            "matchers": matchers,
            "startsAt": self.begins.isoformat(),
            "endsAt": self.ends.isoformat(),
            "createdBy": self.author,
            "comment": self.comment,
        }
        return body | ({"id": self.id} if self.id else {})

    def document(self) -> dict[str, object]:
        """A silence in a document of `--json`."""
        return {
            "id": self.id,
            "alerts": list(self.alerts),
            "until": f"{self.ends:%Y-%m-%dT%H:%M:%SZ}",
            "comment": self.comment,
        }


class _Matcher(ForeignDocument):
    name: str
    value: str
    isRegex: bool  # noqa: N815 - Alertmanager's name


class _State(ForeignDocument):
    state: str


class _Silence(ForeignDocument):
    id: str
    status: _State
    matchers: list[_Matcher]
    startsAt: str  # noqa: N815 - Alertmanager's name
    endsAt: str  # noqa: N815 - Alertmanager's name
    createdBy: str  # noqa: N815 - Alertmanager's name
    comment: str


class SilencesAnswer(RootModel[list[_Silence]]):
    """What `GET /api/v2/silences` answers."""

    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)

    def active(self) -> tuple[AlertSilence, ...]:
        """The silences in force, the one that ends first first. Raises ValueError for a time that is none."""
        found = (
            AlertSilence(
                tuple(Matcher(one.name, one.value, one.isRegex) for one in each.matchers),
                datetime.fromisoformat(each.startsAt),
                datetime.fromisoformat(each.endsAt),
                each.createdBy,
                each.comment,
                each.id,
            )
            for each in self.root
            if each.status.state == "active"
        )
        return tuple(sorted(found, key=lambda one: one.ends))


class SilenceMade(ForeignDocument):
    """What `POST /api/v2/silences` answers."""

    silenceID: str  # noqa: N815 - Alertmanager's name


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


class _Receiver(ForeignDocument):
    name: str


class _RoutedAlert(ForeignDocument):
    receivers: list[_Receiver]


class _RoutedAlerts(RootModel[list[_RoutedAlert]]):
    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)


@dataclass(frozen=True)
class ScrapedTarget:
    """A target that Prometheus reads. `health` is `up`, `down` or, before the first reading, `unknown`.

    `kind` is `engine`, `router`, `node`, `gpu` or `endpoint`.
    """

    kind: str
    address: str
    health: str
    problem: str


@dataclass(frozen=True)
class Notifications:
    """Notifications that receivers of a kind (webhook, email) accepted, and tries that failed, which are repeated."""

    accepted: Mapping[str, int]
    failed_tries: Mapping[str, int]

    def since(self, before: Notifications) -> Notifications:
        """Those that are not in an earlier count."""
        return Notifications(_more(self.accepted, before.accepted), _more(self.failed_tries, before.failed_tries))


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

    def receivers_of(self, labels: Mapping[str, str]) -> list[str]:
        """The names of the receivers that Alertmanager sends the alerts with these labels to."""
        asked = [f'{name}="{value}"' for name, value in labels.items()]
        found = self._ask("GET", "/api/v2/alerts", params={"filter": asked}).document(_RoutedAlerts).root
        return [one.name for alert in found for one in alert.receivers]

    def post_silence(self, silence: AlertSilence) -> AlertSilence:
        """Make a silence in Alertmanager, or change the one with its id; return it with its id.

        Raises Invalid if it is refused.
        """
        answer = self._ask("POST", "/api/v2/silences", json=silence.request())
        if not answer.succeeded:
            raise Invalid(f"HTTP {answer.status}: {answer.text[:200]}")
        return replace(silence, id=answer.document(SilenceMade).silenceID)

    def end_silence(self, silence: str) -> None:
        """End a silence now, by its id."""
        self._ask("DELETE", f"/api/v2/silence/{quote(silence, safe='')}")

    def silences(self) -> tuple[AlertSilence, ...]:
        """The silences in force."""
        try:
            return self._ask("GET", "/api/v2/silences").document(SilencesAnswer).active()
        except ValueError as problem:
            raise Invalid(str(problem)) from None

    def notifications(self) -> Notifications:
        """What Alertmanager has sent to receivers since its start."""
        counts: dict[str, Counter[str]] = {_TRIES: Counter(), _FAILED: Counter()}
        for sample in read_samples(self._ask("GET", "/metrics").text):
            if sample.name in counts:
                counts[sample.name][sample.labels.get("integration", "")] += int(sample.value)
        return Notifications(_more(counts[_TRIES], counts[_FAILED]), counts[_FAILED])

    def _ask(self, method: str, path: str, **options: Any) -> Answer:
        return fetch_answer(
            self._client, self._client.build_request(method, f"{self._url}{path}", **options), seconds=TIMEOUT
        )


def _more(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in now.items()}

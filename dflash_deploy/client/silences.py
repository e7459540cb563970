"""Silences as Alertmanager's API has them: what they match, and from when until when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ConfigDict, RootModel

from dflash_deploy.intake.answers import ForeignDocument

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

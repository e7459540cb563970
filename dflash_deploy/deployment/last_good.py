"""The settings of the last start that ended with an answer, kept beside the deployment: `.dflash/last-good.env`.

They hold no secret. The key is that of `.env`, whichever settings run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from dflash_deploy.deployment import dotenv
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_if_changed

NAME = "last-good.env"
RESTORED = "runs-last-good"
"""Stands in `.dflash/` while the engine runs with those settings instead of with those of `.env`."""


@dataclass(frozen=True)
class Change:
    """One setting that differs: what it was when the engine answered last, and what `.env` says. Empty: left out."""

    name: str
    good: str
    now: str

    def __str__(self) -> str:
        return f"{self.name}: {self.good or '(empty)'} -> {self.now or '(empty)'}"


def remember_good(deployment: Deployment) -> None:
    """Write down that the engine answered with the settings of `.env`."""
    lines = [f"{name}={dotenv.quote(value)}" for name, value in deployment.values.items()]
    write_if_changed(deployment.make_state() / NAME, "\n".join(lines) + "\n", mode=PRIVATE)
    (deployment.state / RESTORED).unlink(missing_ok=True)


def last_good(deployment: Deployment) -> Deployment | None:
    """The same deployment with the settings of its last good start; `None` where there was none yet."""
    place = deployment.state / NAME
    return Deployment(deployment.directory, settings=place) if place.is_file() else None


def changes(deployment: Deployment) -> tuple[Change, ...]:
    """What `.env` says differently from the last good start; nothing where there was none."""
    good = last_good(deployment)
    return () if good is None else difference(good.values, deployment.values)


def difference(good: Mapping[str, str], now: Mapping[str, str]) -> tuple[Change, ...]:
    """The settings that differ. One that is absent and one that is empty are the same."""
    names = dict.fromkeys([*now, *good])
    rows = (Change(name, good.get(name, ""), now.get(name, "")) for name in names)
    return tuple(row for row in rows if row.good != row.now)


def mark_restored(deployment: Deployment, why: str) -> None:
    """Write down that the engine runs with the last good settings, and why."""
    text = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {why}\n"
    write_if_changed(deployment.make_state() / RESTORED, text, mode=PRIVATE)


def restored_since(deployment: Deployment) -> str:
    """Since when and why the engine runs with other settings than those of `.env`; empty where it does not."""
    try:
        return (deployment.state / RESTORED).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""

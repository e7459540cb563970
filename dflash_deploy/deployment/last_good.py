"""The last working settings: those of the last successful start, saved in `.dflash/last-good.env`.

The file has no secrets. The API key is always that of `.env`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from dflash_deploy.deployment import dotenv
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_if_changed
from dflash_deploy.intake.state import read_state_text

NAME = "last-good.env"
RESTORED = "runs-last-good"
"""File in `.dflash/` that exists while the engine runs with the last working settings instead of those of `.env`."""


@dataclass(frozen=True)
class Change:
    """A changed setting: its value in the last working settings and in `.env`; empty if it is not set."""

    name: str
    good: str
    now: str

    def __str__(self) -> str:
        return f"{self.name}: {self.good or '(empty)'} -> {self.now or '(empty)'}"


def remember_good(deployment: Deployment) -> None:
    """Save the settings of `.env` as the last working settings."""
    lines = [f"{name}={dotenv.quote(value)}" for name, value in deployment.values.items()]
    write_if_changed(deployment.make_state() / NAME, "\n".join(lines) + "\n", mode=PRIVATE)
    (deployment.state / RESTORED).unlink(missing_ok=True)


def last_good(deployment: Deployment) -> Deployment | None:
    """Return the deployment with its last working settings; `None` if there are none yet.

    A damaged file is set aside.
    """
    place = deployment.state / NAME
    if read_state_text(place, limit=dotenv.MOST_BYTES) is None:
        return None
    return Deployment(deployment.directory, settings=place)


def changes(deployment: Deployment) -> tuple[Change, ...]:
    """Return the changes of `.env` since the last working settings; empty if there are none yet."""
    good = last_good(deployment)
    return () if good is None else difference(good.values, deployment.values)


def difference(good: Mapping[str, str], now: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the settings that differ. A missing setting equals an empty one."""
    names = dict.fromkeys([*now, *good])
    rows = (Change(name, good.get(name, ""), now.get(name, "")) for name in names)
    return tuple(row for row in rows if row.good != row.now)


def mark_restored(deployment: Deployment, why: str) -> None:
    """Record that the engine runs with the last working settings, and why."""
    text = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {why}\n"
    write_if_changed(deployment.make_state() / RESTORED, text, mode=PRIVATE)


def restored_since(deployment: Deployment) -> str:
    """Return since when and why the engine runs with the last working settings; empty if it runs with `.env`."""
    return (read_state_text(deployment.state / RESTORED) or "").strip()

"""Which lines of the journal silence RestartLoop, and until when."""

from datetime import UTC, datetime, timedelta

import pytest

from dflash_deploy.features.monitoring.rules import RESTART_WINDOW
from dflash_deploy.features.monitoring.silences import counted_until
from dflash_deploy.intake.documents import JournalEvent

BEGAN = datetime(2026, 11, 23, 12, tzinfo=UTC)


def journal(*lines: tuple[str, str]) -> list[JournalEvent]:
    """Events with their commands, ten minutes apart."""
    times = (BEGAN + timedelta(minutes=10 * number) for number in range(len(lines)))
    return [
        JournalEvent(at=f"{at:%Y-%m-%dT%H:%M:%SZ}", event=event, command=command, text="")
        for at, (event, command) in zip(times, lines, strict=True)
    ]


@pytest.mark.parametrize("command", ["up", "restart", "rollback", "keys rotate"])
def test_starts_that_failed_are_not_counted(command: str) -> None:
    assert counted_until(journal(*[("failed", command)] * 9)) is None


@pytest.mark.parametrize(
    "lines",
    [
        [("ready", "up")] * 3,
        [("ready", "up"), ("failed", "up"), ("ready", "restart"), ("rolled-back", "up")],
        [
            ("settings", "up"),
            ("ready", "up"),
            ("key", "keys add"),
            ("ended", ""),
            ("stopped", "down"),
            ("measured", "test"),
        ],
        [("settings", "tune")],
    ],
)
def test_three_restarts_are_not_a_loop(lines: list[tuple[str, str]]) -> None:
    assert counted_until(journal(*lines)) is None


def test_it_is_silenced_until_the_oldest_of_the_restarts_that_are_too_many_is_an_hour_old() -> None:
    four = [("ready", "up"), ("ready", "restart"), ("rolled-back", "up"), ("ready", "rollback")]
    assert counted_until(journal(*four)) == BEGAN + RESTART_WINDOW
    # the first one is no longer needed for four
    assert counted_until(journal(*four, ("failed", "up"), ("ready", "up"))) == (
        BEGAN + timedelta(minutes=10) + RESTART_WINDOW
    )


@pytest.mark.parametrize("event", ["measured", "failed"])
def test_a_command_that_measures_restarts_the_engine_whether_it_fails_or_not(event: str) -> None:
    assert counted_until(journal((event, "tune"))) == BEGAN + RESTART_WINDOW
    assert counted_until(journal(("ready", "up"), (event, "bench"))) == BEGAN + RESTART_WINDOW

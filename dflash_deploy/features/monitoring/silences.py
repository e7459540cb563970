"""`monitor silence`, and the silence that a command sets for the alerts of its own restart.

No receiver gets a silenced alert. RestartLoop counts the restarts that commands cause, and stays silenced until it has
forgotten enough of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.journal import event_of, events
from dflash_deploy.errors import BadInput, EngineNotReady, RolledBack
from dflash_deploy.features.monitoring.api import AlertSilence, Matcher, MonitoringApi
from dflash_deploy.features.monitoring.operations import (
    ALERTMANAGER,
    TEST_LABEL,
    address_of,
    alertmanager_of,
    log_of,
)
from dflash_deploy.features.monitoring.rules import (
    DEPLOYMENT,
    REPLICA,
    RESTART_LOOP,
    RESTART_WINDOW,
    RESTARTS,
)
from dflash_deploy.features.monitoring.rules import (
    alerts as all_alerts,
)
from dflash_deploy.intake.documents import JournalEvent
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.operations.work import WORK

STARTS = frozenset({"up", "restart", "rollback", "keys rotate"})
"""Commands that start an engine once."""

MEASURES = {"test": 2, "bench": 3, "tune": RESTARTS + 1}
"""The restarts of a command that measures, at most; `tune` may restart it more often. A failed one restarts it too."""


def restarts_of(event: str, command: str) -> int:
    """The restarts behind a line of the journal that Prometheus may have seen, at most.

    None of a start that failed: that engine answered no request for its counters, if it was started at all. Of several
    engines, those before it may have been restarted. They are not counted: settings that fail do so at the first one,
    and a count that is too high would silence an engine that ends again and again.
    """
    if command in STARTS:
        return int(event in {"ready", "rolled-back"})
    return MEASURES.get(command, 0) if event in {"measured", "failed"} else 0


def counted_until(lines: Iterable[JournalEvent]) -> datetime | None:
    """When the alert has forgotten enough restarts of these commands; `None` if they are not more than it allows.

    `lines` are those of the journal in their order.
    """
    seen = 0
    for line in reversed(list(lines)):
        seen += restarts_of(line.event, line.command)
        if seen > RESTARTS:
            return datetime.fromisoformat(line.at) + RESTART_WINDOW
    return None


SETTLING = timedelta(seconds=150)
"""How long the silence of a command outlasts it: Prometheus reads the engine again within a minute."""

NOTHING = timedelta()

BY_COMMAND, BY_OWNER = "dflash-deploy", "dflash-deploy monitor silence"
"""Who made a silence, as Alertmanager shows it."""


@dataclass(frozen=True)
class Silenced:
    """The silences of a deployment after a command of theirs. `ended` is how many it ended."""

    silences: Sequence[AlertSilence]
    ended: int = 0

    def document(self) -> dict[str, object]:
        """The `data` of `monitor silence --json`."""
        return {"silences": [one.document() for one in self.silences], "ended": self.ended}


def silence_alerts(directory: Path, *, alerts: Sequence[str] = (), seconds: float, comment: str = "") -> Silenced:
    """Silence these alerts of a deployment, or all of them, for that long.

    Raises BadInput for an alert that does not exist, NotPossible if Alertmanager does not run, EngineNotReady if it
    does not answer, NoDeployment.
    """
    names = [alert.name for alert in all_alerts()]
    for name in alerts:
        if name not in names:
            raise BadInput(f"`{name}` is not an alert", hint=f"alerts: {', '.join(names)}")
    deployment, now = Deployment.existing(directory, check=False), datetime.now(UTC)
    wanted = AlertSilence(
        _matchers(deployment, alerts), now, now + timedelta(seconds=seconds), BY_OWNER, comment or "asked"
    )
    with _asking(deployment) as api:
        api.post_silence(wanted)
        return Silenced(_silences(api, deployment))


def end_silences(directory: Path) -> Silenced:
    """End all silences of a deployment. Raises as `silence_alerts`."""
    deployment = Deployment.existing(directory, check=False)
    with _asking(deployment) as api:
        active = _silences(api, deployment)
        for one in active:
            api.end_silence(one.id)
        return Silenced(_silences(api, deployment), len(active))


def list_silences(directory: Path) -> Silenced:
    """The silences of a deployment that are in force. Raises as `silence_alerts`."""
    deployment = Deployment.existing(directory, check=False)
    with _asking(deployment) as api:
        return Silenced(_silences(api, deployment))


@contextmanager
def silenced(
    deployment: Deployment, command: str, note: Callable[[str], None], most: timedelta = WORK
) -> Iterator[None]:
    """Silence the alerts that a restart causes while the block runs, if Alertmanager runs.

    Of one of several engines these are its own alerts: the others answer, and their alerts are sent.
    The silence ends with a failure of the block, so that the alerts tell of it. After a success it lasts SETTLING
    longer; that of RestartLoop as long as the alert counts the restarts, if commands caused enough of them. That of a
    command that is killed ends with the next command, at the latest after `most`. An Alertmanager that does not answer
    stops no command.
    """
    address = address_of(deployment, ALERTMANAGER)
    made = _work_began(address, deployment, command, most, note) if address else None
    try:
        yield
    except BaseException as problem:
        # the journal has its line later
        rolled_back = isinstance(problem, RolledBack)
        unwritten = event_of("rolled-back" if rolled_back else "failed", command, "")
        _work_ended(address, deployment, made, SETTLING if rolled_back else NOTHING, unwritten)
        raise
    _work_ended(address, deployment, made, SETTLING)


def _work_began(
    address: str, deployment: Deployment, command: str, most: timedelta, note: Callable[[str], None]
) -> AlertSilence | None:
    now = datetime.now(UTC)
    one = "the engine" if deployment.member is None else f"engine {deployment.member}"
    wanted = AlertSilence(caused_by_restart(deployment), now, now + most, BY_COMMAND, f"`{command}` restarts {one}")
    try:
        with MonitoringApi(address) as api:
            _end_those_of_commands(api, deployment)
            return api.post_silence(wanted)
    except (httpx.HTTPError, Invalid) as problem:
        note(f"Alertmanager does not answer, so alerts are not silenced: {problem}")
        return None


def _work_ended(
    address: str, deployment: Deployment, made: AlertSilence | None, longer: timedelta, *unwritten: JournalEvent
) -> None:
    if made is None:
        return
    try:
        with MonitoringApi(address) as api:
            if longer:
                api.post_silence(made.until(datetime.now(UTC) + longer))
            else:
                api.end_silence(made.id)
                _end_those_of_commands(api, deployment)
            if counted := _restarts_counted(deployment, unwritten):
                api.post_silence(counted)
    except (httpx.HTTPError, Invalid):
        # it ends by itself
        return


def _restarts_counted(deployment: Deployment, unwritten: Sequence[JournalEvent]) -> AlertSilence | None:
    """The silence of RestartLoop for as long as commands may have caused as many restarts as it counts.

    For all engines of the deployment: the next command ends it, and makes it again if it is still due. `unwritten` are
    lines that the journal does not have yet.
    """
    now = datetime.now(UTC)
    until = counted_until((*events(deployment, now - RESTART_WINDOW), *unwritten))
    if until is None:
        return None
    comment = f"commands restarted the engine more than {RESTARTS} times"
    return AlertSilence(_matchers(deployment, [RESTART_LOOP]), now, until + SETTLING, BY_COMMAND, comment)


def _end_those_of_commands(api: MonitoringApi, deployment: Deployment) -> None:
    """End the silences that commands of the deployment made, also those of a command that was killed."""
    for one in _silences(api, deployment):
        if one.author == BY_COMMAND:
            api.end_silence(one.id)


def caused_by_restart(deployment: Deployment) -> tuple[Matcher, ...]:
    """What an alert has that a restart of the deployment, or of one of its engines, causes."""
    caused = [alert for alert in all_alerts() if alert.by_restart]
    if deployment.member is None:
        return _matchers(deployment, [alert.name for alert in caused])
    # the others have no label with the number of an engine
    of_engines = [alert.name for alert in caused if not alert.needs]
    return (*_matchers(deployment, of_engines), Matcher(REPLICA, str(deployment.member)))


def _matchers(deployment: Deployment, alerts: Sequence[str]) -> tuple[Matcher, ...]:
    of = Matcher(DEPLOYMENT, deployment.project_name)
    # `monitor test` reaches the receivers also while everything is silent
    named = Matcher("alertname", "|".join(alerts), pattern=True) if alerts else Matcher(TEST_LABEL, "")
    return (of, named)


def _silences(api: MonitoringApi, deployment: Deployment) -> tuple[AlertSilence, ...]:
    of = Matcher(DEPLOYMENT, deployment.project_name)
    return tuple(one for one in api.silences() if of in one.matchers)


@contextmanager
def _asking(deployment: Deployment) -> Iterator[MonitoringApi]:
    try:
        with MonitoringApi(alertmanager_of(deployment)) as api:
            yield api
    except (httpx.HTTPError, Invalid) as problem:
        raise EngineNotReady(
            f"Alertmanager does not answer: {problem}",
            hint=f"read {log_of(deployment, ALERTMANAGER)}",
        ) from None

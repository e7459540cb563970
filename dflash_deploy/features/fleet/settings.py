"""The common parts of all `fleet` commands: the open fleet, work on all hosts at once, results, and settings of a host.

A fleet is a deployment directory with a `fleet.yaml` beside its `.env`. Its settings, its lock and its keys are written
into the deployment directory of a host. A question to a host is repeated before its answer is judged: one lost
connection is not a lost host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from dflash_deploy.assets import asset
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import LOCK_FILE
from dflash_deploy.document import Count, Documented, Hidden, Keywords, Rate, Seconds
from dflash_deploy.errors import BadInput, DeployError, ExitCode, HostUnfit, HostUnreachable
from dflash_deploy.features.fleet.file import (
    Chosen,
    Fleet,
    FleetHost,
    Place,
    Shape,
    choose_shape,
    env_text,
    has_front,
    own_settings,
    read_fleet,
)
from dflash_deploy.features.fleet.prepare import Wheel, environment_of, read_wheel
from dflash_deploy.features.fleet.ssh import Calls, RemoteData, RemoteDocument, Session, call, error_of
from dflash_deploy.intake.files import read_text
from dflash_deploy.operations.reporter import Reporter
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.router.files import KEYS, RouterKeys, keys_document_of

T = TypeVar("T")

NAME_COLUMN = 12
"""Characters of a host's name before its progress."""

LONGEST_LINE = 160
"""Characters of a line of progress."""


FailureCode = Annotated[int, Keywords(enum=[int(code) for code in ExitCode if code])]


@dataclass(frozen=True)
class HostError(Documented):
    """Why a command failed on a host."""

    code: FailureCode
    """Exit code, as in docs/reference/exit-codes.md."""
    message: str
    """What failed: one line that begins with the name of the host. The text may change."""
    hint: str
    """What to do next."""


@dataclass(frozen=True)
class HostResult(Documented):
    """One host."""

    host: Hidden[FleetHost]
    answer: Hidden[RemoteDocument | None]
    failure: Hidden[DeployError | None]
    name: str
    """Name of the host in fleet.yaml."""
    address: str
    """Its address, as in fleet.yaml."""
    rank: Count
    """Its rank if all hosts run one engine: 0 is the leader."""
    state: str
    """`usable`, `ready`, `running`, `accepted`, `counted`, `stopped`, `passed`, `failed`, or a state of `status`."""
    seconds: Seconds
    """Duration of the command on this host."""
    endpoint: str | None
    """Base URL of its engine for OpenAI clients; null if it is unknown or the engine answers no requests."""
    model: str | None
    """Name of the model in requests; null if it is unknown."""
    tokens_per_second: Rate | None
    """Tokens per second of one short answer; null if it was not measured."""
    acceptance_length: Annotated[float, Keywords(minimum=1)] | None
    """Acceptance length in tokens per step; null if nothing was drafted or counted."""
    cause: str | None
    """Why the engine is in this state, if the host said so."""
    checks_passed: Count
    """Number of checks that passed."""
    checks_failed: Sequence[str]
    """Names of the checks that failed."""
    error: HostError | None
    """Why the command failed on this host; null if it did not."""
    routed: bool | None
    """Whether the router sends requests to its engine; null without a router, and if it or the host does not say."""


def host_result(
    host: FleetHost,
    rank: int,
    state: str,
    seconds: float,
    answer: RemoteDocument | None = None,
    failure: DeployError | None = None,
) -> HostResult:
    """What a command did on one host. `state` is one word for people and programs; `failure` is set if it failed."""
    data = answer.data if answer else RemoteData()
    error = None if failure is None else HostError(int(failure.exit_code), failure.message, failure.hint)
    return HostResult(
        host,
        answer,
        failure,
        host.name,
        host.address,
        rank,
        state,
        round(seconds, 1),
        data.endpoint or None,
        data.model,
        data.tokens_per_second,
        data.acceptance_length,
        data.problem or data.cause,
        sum(check.status == "passed" for check in data.checks),
        [check.name for check in data.checks if check.status == "failed"],
        error,
        None,
    )


@dataclass(frozen=True)
class FleetResult(Documented):
    """The result of a command on several hosts."""

    failure: Hidden[DeployError | None]
    shape: Shape
    """`replicas`: an engine on each host; `one-engine`: one engine over all hosts."""
    reason: str
    """Why it has this shape. The text may change."""
    router: str | None
    """Name of the host with the router and the door of all; null without a router."""
    hosts: Sequence[HostResult]
    """The hosts, in the order of fleet.yaml."""


@dataclass(frozen=True)
class OpenFleet:
    """A fleet that a command works on: the deployment whose settings it has, the hosts, and the wheel for them."""

    deployment: Deployment
    fleet: Fleet
    hosts: tuple[FleetHost, ...]
    chosen: Chosen
    wheel: Wheel | None
    reporter: Reporter

    @property
    def environment(self) -> str:
        """The name of the environment with dflash-deploy on each host."""
        return environment_of(self.fleet, self.wheel)

    def require_all(self) -> None:
        """Raise BadInput if one engine over all hosts would start or stop on some of them."""
        if self.chosen.shape == "one-engine" and len(self.hosts) < len(self.fleet.hosts):
            raise BadInput("one engine runs on all hosts together", hint="leave out --host")

    def say(self, host: FleetHost, text: str) -> None:
        """Report one line of progress of a host, without secrets."""
        self.reporter.note(f"{host.name:{NAME_COLUMN}} {self.deployment.redact(printable_line(text))}")

    def on_each(
        self, work: Callable[[Session], T], hosts: tuple[FleetHost, ...] | None = None
    ) -> Mapping[str, HostOutcome[T]]:
        """Do the work for hosts at the same time. An error of one is reported when it occurs."""

        def reported(session: Session) -> T:
            try:
                return work(session)
            except DeployError as problem:
                self.say(session.host, f"failed: {problem.message}")
                raise

        return on_each(self.fleet, self.hosts if hosts is None else hosts, reported)

    def call(self, session: Session, command: str, *args: str, seconds: float | None = None) -> RemoteDocument:
        """Run a command in the deployment directory of a host. Raises what `ssh.call` raises."""
        return call(
            session, self.environment, *command.split(), "--dir", session.host.directory, *args, seconds=seconds
        )

    def results(self, outcomes: Mapping[str, HostOutcome[RemoteDocument]], default: str) -> FleetResult:
        """The result of a command. `default` is the state of a host whose document has none."""
        rows = tuple(self._result(outcome, default) for outcome in outcomes.values())
        failures = {row.name: HostOutcome[None](row.host, row.seconds, error=row.failure) for row in rows}
        return self.result(rows, failure_of_all(failures))

    def result(self, rows: Sequence[HostResult], failure: DeployError | None) -> FleetResult:
        """The result of a command with these rows."""
        return FleetResult(failure, self.chosen.shape, self.chosen.reason, self.router or None, rows)

    @property
    def front(self) -> bool:
        """Whether the leader runs a router and a door for the engines of all hosts."""
        return has_front(self.fleet, self.chosen)

    @property
    def router(self) -> str:
        """The name of the host with the router; empty without one."""
        return self.fleet.leader.name if self.front else ""

    def _result(self, outcome: HostOutcome[RemoteDocument], default: str) -> HostResult:
        document, host = outcome.result, outcome.host
        error = outcome.error
        if document is not None and error is None:
            error = error_of(host, document)
        state = "failed" if error else (document and document.data.state) or default
        return host_result(host, self.fleet.ranked.index(host), state, outcome.seconds, document, error)


def printable_line(text: str) -> str:
    """One line of a text from a host, of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def open_fleet(directory: Path, names: tuple[str, ...], reporter: Reporter) -> OpenFleet:
    """Open the fleet of a deployment directory, for the hosts with these names, all without names.

    Raises NoDeployment, SettingsRefused, FleetRefused, BadInput for a name that does not exist, and NotPossible.
    """
    deployment = Deployment.existing(directory)
    fleet = read_fleet(deployment.directory)
    chosen = choose_shape(fleet, plan_of(deployment))
    wheel = read_wheel(fleet, deployment.directory)
    return OpenFleet(deployment, fleet, fleet.named(names), chosen, wheel, reporter)


def place_here() -> Place:
    """Where paths begin on this machine."""
    return Place(str(Path.home()), str(asset("models").parent))


NOTHING: Mapping[str, str] = {}


def carry_settings(
    opened: OpenFleet, session: Session, place: Place, changes: Mapping[str, str], forced: Mapping[str, str] = NOTHING
) -> None:
    """Write `.env`, and `dflash.lock` if there is one, into the deployment directory of a host.

    `changes` are the settings that follow from the shape; those of `fleet.yaml` override them, but not `forced`.
    """
    host, deployment = session.host, opened.deployment
    own = {**changes, **own_settings(opened.fleet, host), **forced}
    text = env_text(read_text(deployment.env_file), deployment.values, place_here(), place, own)
    if session.send(text.encode(), f"{host.directory}/.env"):
        opened.say(host, "settings and the API key are written, mode 0600")
    lock = deployment.directory / LOCK_FILE
    if lock.exists():
        session.send(read_text(lock).encode(), f"{host.directory}/{LOCK_FILE}")


def carry_router_keys(session: Session, keys: RouterKeys) -> None:
    """Write the router's keys into the deployment directory of a host: its engine lets the router read its load."""
    session.send(keys_document_of(keys).encode(), f"{session.host.directory}/.dflash/router/{KEYS}")


@dataclass(frozen=True)
class HostOutcome(Generic[T]):
    """What the work on one host returned, or the error that it ended with; `seconds` is its duration."""

    host: FleetHost
    seconds: float
    result: T | None = None
    error: DeployError | None = None


def on_each(fleet: Fleet, hosts: Sequence[FleetHost], work: Callable[[Session], T]) -> Mapping[str, HostOutcome[T]]:
    """Do the work for all hosts at the same time; return the outcomes by name, in the order of the hosts.

    An error of one host leaves the others running. If this program is interrupted, all connections end.
    """
    calls = Calls()

    def one(host: FleetHost) -> HostOutcome[T]:
        began = time.monotonic()
        try:
            done = work(Session(fleet, host, calls))
        except DeployError as problem:
            return HostOutcome(host, time.monotonic() - began, error=problem)
        return HostOutcome(host, time.monotonic() - began, result=done)

    with ThreadPoolExecutor(len(hosts)) as pool:
        futures = [pool.submit(one, host) for host in hosts]
        try:
            left = set(futures)
            while left:
                # a wait without an end would not notice Ctrl-C on every platform
                _, left = wait(left, timeout=1.0, return_when=FIRST_COMPLETED)
        except BaseException:
            calls.end()
            raise
        return {host.name: future.result() for host, future in zip(hosts, futures, strict=True)}


def failure_of_all(outcomes: Mapping[str, HostOutcome[T]]) -> DeployError | None:
    """One error for those of all hosts, of the class of the first; `None` if no host failed."""
    failed = [outcome for outcome in outcomes.values() if outcome.error is not None]
    if not failed:
        return None
    first = failed[0].error
    if len(failed) == 1 or first is None:
        return first
    names = ", ".join(outcome.host.name for outcome in failed)
    # the exit code is that of the first failure
    said = f"{len(failed)} of {len(outcomes)} hosts failed ({names}); {first.message}"
    return type(first)(said, hint=first.hint, detail=first.detail)


TRIES = 3

PAUSE = 2.0
"""Seconds between two tries."""


def ask_again(
    ask: Callable[[], T],
    *,
    enough: Callable[[T], bool] = lambda answer: True,
    tries: int = TRIES,
    wait: Callable[[float], None] = time.sleep,
) -> T:
    """Return the first answer that is `enough`, else the last one. Raises the error of the last try.

    Only errors of a host are tried again: one that cannot be reached, or answers something else.
    """
    for _ in range(tries - 1):
        try:
            answer = ask()
        except (HostUnreachable, HostUnfit):
            wait(PAUSE)
            continue
        if enough(answer):
            return answer
        wait(PAUSE)
    return ask()

"""Starts and changes engines of several hosts together: the ranks of one engine, or replicas.

Ranks of one engine over all hosts are stopped together, and started together. Replicas, an engine on each host, are
started together, and changed one host after the other. `fleet watch` checks the ranks of one engine again and again,
and restarts them together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dflash_deploy.deployment.directory import owe_start, owed_start, settle_start
from dflash_deploy.deployment.front import make_router_keys
from dflash_deploy.deployment.lock import locked
from dflash_deploy.errors import (
    DeployError,
    DirectoryBusy,
    EngineNotReady,
    HostUnfit,
    HostUnreachable,
    NotPossible,
    PreflightRefused,
)
from dflash_deploy.features.fleet import ssh
from dflash_deploy.features.fleet.each import HostOutcome, ask_again, failure_of_all, on_each
from dflash_deploy.features.fleet.engines import (
    BUSY_PAUSE,
    NOT_STARTED,
    failed_routes,
    find_front,
    leave,
    link_addresses,
    present_front,
    start_engine,
    stop_engine,
)
from dflash_deploy.features.fleet.file import FleetHost, Front, in_turns, shape_settings
from dflash_deploy.features.fleet.prepare import (
    Judgement,
    RankSeen,
    RemoteFacts,
    judge_ranks,
    questions_to_peers,
    read_facts,
)
from dflash_deploy.features.fleet.settings import OpenFleet, carry_router_keys, carry_settings, open_fleet
from dflash_deploy.features.fleet.ssh import BUSY, RemoteDocument, Session, error_of
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.planning import plan_of
from dflash_deploy.startup import PATIENCE

EVERY = 10.0
"""Seconds between two checks of the workers while the leader starts."""

ENDS = 120.0
"""Seconds for a start on a host to end after it was interrupted."""

Outcomes = Mapping[str, HostOutcome[RemoteDocument]]


def start_ranks(opened: OpenFleet, addresses: Mapping[str, str], patience: float) -> Outcomes:
    """Stop what runs on all hosts, start the workers, then the leader, and wait for its answer.

    A rank does not join an engine that runs, so all of them start together. If one fails, all are stopped. `addresses`
    are those of the hosts on their link.
    """
    leader, *workers = opened.fleet.ranked
    outcomes = dict(opened.on_each(lambda one: _stop_for_start(opened, one), opened.fleet.hosts))
    if _failed(outcomes):
        return _after_failure(outcomes)
    outcomes |= opened.on_each(lambda one: start_engine(opened, one, patience), tuple(workers))
    if not _failed(outcomes):
        outcomes |= {name: one for name, one in _lead(opened, leader, addresses, patience).items()
                     if name == leader.name or one.error}  # fmt: skip
    if _failed(outcomes):
        opened.on_each(lambda one: _stop(opened, one), opened.fleet.hosts)
        return _after_failure(outcomes)
    settle_start(opened.deployment)
    return outcomes


def _failed(outcomes: Outcomes) -> bool:
    return any(one.error for one in outcomes.values())


def _after_failure(outcomes: Outcomes) -> Outcomes:
    return {
        name: one if one.error else HostOutcome(one.host, one.seconds, NOT_STARTED) for name, one in outcomes.items()
    }


def runs_as_started(opened: OpenFleet, session: Session) -> bool:
    """Whether `.env` of a host, and the release of dflash-deploy, are those with which its engine was started.

    If a `fleet up` is interrupted after it wrote `.env`, the engines run with older settings, and `up` on each host
    would restart them: ranks one by one, and replicas all at the same time.
    """
    return session.require(ssh.compare_settings(session.host.directory, opened.environment)) == "same\n"


def mark_as_started(opened: OpenFleet, session: Session) -> None:
    """Remember the `.env` of a host and the release as those with which its engine is started."""
    session.require(ssh.mark_settings(session.host.directory, opened.environment))


def mark_as_unknown(session: Session) -> None:
    """Remember that an engine may run with any settings: a start on the host begins."""
    session.require(ssh.mark_settings(session.host.directory, ""))


def _stop_for_start(opened: OpenFleet, session: Session) -> RemoteDocument:
    document = _stop(opened, session)
    mark_as_started(opened, session)
    return document


def _stop(opened: OpenFleet, session: Session) -> RemoteDocument:
    """Stop a rank, and a start that still runs there: it would wait for ranks that are gone."""
    ends = time.monotonic() + ENDS
    while True:
        document = ask_again(lambda: stop_engine(opened, session))
        error = error_of(session.host, document)
        if error is None:
            return document
        if BUSY not in error.message or time.monotonic() > ends:
            raise error
        _interrupt(session)
        time.sleep(BUSY_PAUSE)


def _interrupt(session: Session) -> None:
    ask_again(lambda: session.require(ssh.interrupt(session.host.directory)))


def _lead(opened: OpenFleet, leader: FleetHost, addresses: Mapping[str, str], patience: float) -> Outcomes:
    """Start the leader. A worker that is lost meanwhile ends the start: the leader would wait until `patience` ends."""
    ended = threading.Event()
    lost: list[str] = []

    def work(session: Session) -> RemoteDocument:
        if session.host is leader:
            try:
                return start_engine(opened, session, patience)
            finally:
                ended.set()
        problem = _loss_of(opened, session, addresses, ended)
        if problem is None:
            return NOT_STARTED
        lost.append(session.host.name)
        opened.on_each(_interrupt, (leader,))
        raise problem

    outcomes = dict(opened.on_each(work, opened.fleet.hosts))
    if lost:
        outcomes[leader.name] = HostOutcome(leader, outcomes[leader.name].seconds, NOT_STARTED)
    return outcomes


def _loss_of(
    opened: OpenFleet, session: Session, addresses: Mapping[str, str], ended: threading.Event
) -> EngineNotReady | HostUnfit | None:
    """Check a worker until the leader's start has ended; return why the worker is lost, `None` if it is not."""
    doubts = 0
    while not ended.wait(EVERY):
        problem = _problem_of(opened, session, addresses)
        # one lost connection does not mean a cut cable
        doubts = doubts + 1 if problem is not None else 0
        if isinstance(problem, EngineNotReady) or doubts > 1:
            return problem
    return None


def _problem_of(opened: OpenFleet, session: Session, addresses: Mapping[str, str]) -> EngineNotReady | HostUnfit | None:
    """What is wrong with a worker while the leader starts; `None` if nothing is, or it cannot be reached."""
    name = session.host.name
    try:
        found = look_at(opened, session, addresses)
    except HostUnreachable:
        # the ranks need the link between them, and not the one to this machine
        return None
    except PreflightRefused as problem:
        said = problem.message.removeprefix(f"{name}: ")
        return HostUnfit(
            f"{name}: its rank cannot be checked while the leader starts, so all are stopped: {said}", hint=problem.hint
        )
    if found.engine is None or found.engine.phase != "running":
        return EngineNotReady(
            f"{name}: its rank ended while the leader started", hint=f"dflash-deploy fleet logs --host {name}"
        )
    if not all(found.peers.values()):
        return HostUnfit(
            f"{name}: another host does not answer over the link while the leader starts",
            hint="check the cable between the hosts, and run the same command again",
        )
    return None


def look_at(opened: OpenFleet, session: Session, addresses: Mapping[str, str]) -> RemoteFacts:
    """Return the facts of a host with the state of its rank, and which other hosts answer it over the link."""
    questions = questions_to_peers(addresses, session.host.name)
    return read_facts(session, opened.environment, "--dir", session.host.directory, *questions)


def start_each(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], facts: Mapping[str, RemoteFacts], patience: float
) -> Outcomes:
    """Start an engine on each host that gets its settings, and let the router send to those that answer.

    Raises HostUnfit, FleetRefused if the router cannot reach the hosts; if one is missing, the error of the leader.
    """
    if not hosts:
        return {}
    front = find_front(opened, facts) if opened.front else None
    # all hosts get the same ones
    keys = make_router_keys(opened.deployment) if front is not None else None

    def carry(session: Session) -> bool:
        host = session.host
        own = shape_settings(opened.fleet, opened.chosen, plan_of(opened.deployment), host, "")
        if front is None or keys is None:
            carry_settings(opened, session, facts[host.name].place, own)
            return False
        if host.name in front.engines:
            opened.say(host, f"serves the router at {_place(front.engines[host.name], facts[host.name])}")
        carry_router_keys(session, keys)
        carry_settings(opened, session, facts[host.name].place, own, front.settings(host))
        return ask_again(lambda: restarts(opened, session))

    carried = opened.on_each(carry, hosts)
    errors = {name: one.error for name, one in carried.items() if one.error}
    able = tuple(host for host in hosts if host.name not in errors)
    restarting = {name for name, one in carried.items() if one.result}
    started = _started(opened, able, restarting, front, patience) if able else {}
    failed = {name: HostOutcome[RemoteDocument](carried[name].host, 0.0, error=one) for name, one in errors.items()}
    return {**failed, **started}


def _place(address: str, facts: RemoteFacts) -> str:
    """An address HOST:PORT with the interface that has it."""
    found = next((link.interface for link in facts.links if link.address == address.rpartition(":")[0]), "")
    return f"{address} ({found})" if found else address


def restarts(opened: OpenFleet, session: Session) -> bool:
    """Whether the engine of a host runs, and was started with other settings or by another release."""
    if runs_as_started(opened, session):
        return False
    engine = read_facts(session, opened.environment, "--dir", session.host.directory).engine
    return engine is not None and engine.phase == "running"


def _started(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], restarting: set[str], front: Front | None, patience: float
) -> Outcomes:
    """Start the engines at the same time; behind a router, those that run with other settings one after the other."""
    if front is None:
        return opened.on_each(lambda session: _start(opened, session, patience), hosts)
    together, turns = in_turns(hosts, opened.fleet.leader, restarting)
    outcomes: dict[str, HostOutcome[RemoteDocument]] = {}
    if together:
        outcomes |= opened.on_each(lambda session: _start(opened, session, patience), together)
    outcomes |= one_after_the_other(opened, turns, patience, "up", front)
    return _routed(opened, front, outcomes)


def _start(opened: OpenFleet, session: Session, patience: float, command: str = "up") -> RemoteDocument:
    # an interrupted or failed start may leave an engine with older settings, or with ones that are replaced again
    ask_again(lambda: mark_as_unknown(session))
    document = start_engine(opened, session, patience, command)
    ask_again(lambda: mark_as_started(opened, session))
    return document


def one_after_the_other(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], patience: float, command: str, front: Front | None = None
) -> Outcomes:
    """Run `up` or `restart` on one host after the other, and no further after a failure.

    Behind a router, each host gets no requests meanwhile: it leaves the router's list, ends its requests, starts,
    proves itself, and returns.
    """
    if opened.front and front is None and hosts:
        front = present_front(opened)
    outcomes: dict[str, HostOutcome[RemoteDocument]] = {}
    failure: DeployError | None = None

    for host in hosts:
        if failure is not None:
            skipped = EngineNotReady(f"{host.name}: not restarted: {failure.message}", hint=failure.hint)
            outcomes[host.name] = HostOutcome(host, 0.0, error=skipped)
            continue
        outcomes[host.name] = done = _one(opened, host, patience, command, front)
        failure = done.error
    return outcomes


def _one(
    opened: OpenFleet, host: FleetHost, patience: float, command: str, front: Front | None
) -> HostOutcome[RemoteDocument]:
    """Restart the engine of one host, without requests from the router meanwhile."""
    if front is not None and host is not front.host and host.name in front.engines:
        problem = leave(opened, host, front.engines[host.name])
        if problem is not None:
            return HostOutcome(host, 0.0, error=problem)
    opened.say(host, "stops and starts")
    outcomes = opened.on_each(lambda one: _start(opened, one, patience, command), (host,))
    # also after a failure: the engine may answer with its last working settings
    return (_routed(opened, front, outcomes) if front is not None else outcomes)[host.name]


def _routed(opened: OpenFleet, front: Front, outcomes: Outcomes) -> Outcomes:
    """The same after the router sends to all engines that answer. A host whose engine gets no requests has failed."""
    done = dict(outcomes)
    for name, problem in failed_routes(opened, front, outcomes).items():
        blamed = name if name in done else next(iter(done))
        done[blamed] = replace(done[blamed], result=None, error=done[blamed].error or problem)
    return done


WATCH_EVERY = 10.0
"""Seconds from the beginning of one look to that of the next one. With the 10 s in which SSH gives up on a host, a loss
is noticed within 30 s."""

ASKS = 30.0
"""Seconds for one generation of the leader, when a host or the link cannot be reached."""

LEADER_TRIES = 2

MOST_FAILURES = 3
"""Starts in a row that fail before the watch ends with the last failure."""


def fleet_watch(
    directory: Path,
    *,
    patience: float = PATIENCE,
    every: float = WATCH_EVERY,
    looks: int | None = None,
    reporter: Reporter = SILENT,
) -> int:
    """Check the ranks every `every` seconds, without end or `looks` times, and restart all if one is lost.

    Returns how often all ranks were restarted. Raises as `open_fleet`; NotPossible for replicas; the error of a host
    that cannot be reached at the beginning; EngineNotReady after MOST_FAILURES failed starts in a row.
    """
    opened = open_fleet(directory, (), reporter)
    if opened.chosen.shape != "one-engine":
        raise NotPossible(
            "`fleet watch` restarts the ranks of one engine together; these hosts run replicas",
            hint="a replica restarts by itself in Docker; `fleet status` asks each",
        )
    watch = RankWatch(opened, link_addresses(opened), patience)
    done, due = 0, time.monotonic()
    while looks is None or done < looks:
        time.sleep(max(0.0, due - time.monotonic()))
        # a look that takes long does not delay the next one
        due = time.monotonic() + every
        watch.look_once()
        done += 1
    return watch.restarts


@dataclass
class RankWatch:
    """What the looks have found so far. `addresses` are those of the hosts on the link between them.

    `owes` says why the ranks were stopped, or could not be started: they start as soon as all hosts are reachable. It
    outlives the watch, and `fleet down` clears it. `doubted` means that a host was cut off, so that the engine must
    prove that it still computes.
    """

    opened: OpenFleet
    addresses: Mapping[str, str]
    patience: float
    restarts: int = 0
    doubted: bool = False
    failures: int = 0
    last: Mapping[str, RankSeen] = field(default_factory=dict)
    told: str = ""

    @property
    def owes(self) -> str:
        """Why a start is owed; empty if none is."""
        return owed_start(self.opened.deployment)

    def look_once(self) -> None:
        """Check all hosts once, and do what follows. Raises EngineNotReady after MOST_FAILURES failed starts."""
        seen = self._look()
        judged = self._judged(seen)
        if judged.verdict == "cut":
            self._tell(judged.reason)
            self._cut(seen, judged.reason)
        elif owed := self.owes:
            self._tell(f"all hosts can be reached, and a start is owed: {owed}")
            self._start(seen, judged)
        elif judged.verdict == "broken":
            self._tell(judged.reason)
            self._start(seen, judged)
        elif judged.verdict == "together" and self.doubted and not self._leader_answers():
            self._tell("all hosts can be reached again, but the engine does not answer")
            self._start(seen, judged)
        else:
            self._well(judged, seen)

    def _judged(self, seen: Mapping[str, RankSeen], before: Mapping[str, RankSeen] | None = None) -> Judgement:
        return judge_ranks(self.last if before is None else before, seen, self.opened.fleet.leader.name)

    def _well(self, judged: Judgement, seen: Mapping[str, RankSeen]) -> None:
        self.doubted, self.last = False, seen
        self._tell(judged.reason or f"all {len(seen)} ranks run")

    def _look(self) -> Mapping[str, RankSeen]:
        opened = self.opened
        found = on_each(opened.fleet, opened.fleet.hosts, lambda one: look_at(opened, one, self.addresses))
        return {name: _seen(outcome) for name, outcome in found.items()}

    def _cut(self, seen: Mapping[str, RankSeen], reason: str) -> None:
        """A host or the link is lost. If the leader does not answer any more, stop what can be reached.

        Its clients then get a refusal at once, and not the silence of an engine that waits for a rank.
        """
        self.doubted = True
        if not self._waits_for_ranks(seen) or self._leader_answers():
            return
        self._holding(lambda: self._stop(reason))

    def _waits_for_ranks(self, seen: Mapping[str, RankSeen]) -> bool:
        """Whether the leader may run and wait for a rank that is out of reach, and nothing is owed yet."""
        leader = seen[self.opened.fleet.leader.name]
        return not (self.owes or leader.unreached or leader.phase == "absent")

    def _stop(self, reason: str) -> None:
        # `fleet down` may have stopped the leader since the look, and the host may be back
        seen = self._look()
        if self._judged(seen).verdict != "cut" or not self._waits_for_ranks(seen):
            return
        self._tell("stops the other ranks until all hosts can be reached")
        owe_start(self.opened.deployment, reason)
        reached = tuple(host for host in self.opened.fleet.hosts if not seen[host.name].unreached)
        self.opened.on_each(lambda one: stop_engine(self.opened, one), reached)

    def _start(self, seen: Mapping[str, RankSeen], judged: Judgement) -> None:
        self._holding(lambda: self._start_all(seen, judged))

    def _start_all(self, seen: Mapping[str, RankSeen], judged: Judgement) -> None:
        # another command may have stopped or started them since the look, and one answer may have been wrong
        again = self._judged(self._look(), self.last or seen)
        owed = self.owes
        if again.verdict == "cut" or (not owed and again.verdict == "stopped"):
            return
        if not owed and judged.verdict == "broken" and again.verdict == "together":
            self._tell("a second check found all ranks running")
            return
        if owed and again.verdict == "together" and self._leader_answers():
            # the watch that owed it ended after the start
            settle_start(self.opened.deployment)
            self.doubted = False
            self._tell("the engine answers: it does not start again")
            return
        self._tell("restarts all ranks together")
        owe_start(self.opened.deployment, owed or judged.reason or "the engine did not answer")
        outcomes = start_ranks(self.opened, self.addresses, self.patience)
        errors = {name: error_of(one.host, one.result) for name, one in outcomes.items() if one.result is not None}
        failure = failure_of_all(outcomes) or next(filter(None, errors.values()), None)
        if failure is None:
            self.doubted, self.failures, self.last = False, 0, {}
            self.restarts += 1
            return
        self._failed(failure)

    def _failed(self, failure: DeployError) -> None:
        self.failures += 1
        self._tell(f"the start failed ({self.failures} of {MOST_FAILURES}): {failure.message}")
        owe_start(self.opened.deployment, failure.message)
        if self.failures >= MOST_FAILURES:
            raise EngineNotReady(
                f"the watch gave up after {MOST_FAILURES} failed starts: {failure.message}",
                hint=f"{failure.hint}; then `dflash-deploy fleet up`, or start the watch again",
            ) from None

    def _holding(self, work: Callable[[], None]) -> None:
        """Do the work under the lock of the fleet; leave it for the next look if another command holds it."""
        try:
            with locked(self.opened.deployment.directory, "fleet watch"):
                work()
        except DirectoryBusy:
            self._tell("another command works on the fleet: waits for it")

    def _leader_answers(self) -> bool:
        def ask(session: Session) -> bool:
            document = self.opened.call(session, "status", "--json", seconds=ASKS)
            return document.data.state == "ready"

        leader = self.opened.fleet.leader
        # one answer that does not arrive stops no engine
        found = on_each(
            self.opened.fleet, (leader,), lambda one: ask_again(lambda: ask(one), enough=bool, tries=LEADER_TRIES)
        )
        return bool(found[leader.name].result)

    def _tell(self, text: str) -> None:
        """Report what changed; the same line once."""
        if text != self.told:
            self.told = text
            self.opened.reporter.note(self.opened.deployment.redact(f"{time.strftime('%H:%M:%S')}  {text}"))


def _seen(outcome: HostOutcome[RemoteFacts]) -> RankSeen:
    facts = outcome.result
    if facts is None:
        return RankSeen(unreached=outcome.error.message if outcome.error else f"{outcome.host.name}: no answer")
    silent = tuple(address for address, answered in facts.peers.items() if not answered)
    if facts.engine is None:
        return RankSeen("absent", silent=silent)
    engine = facts.engine
    return RankSeen(engine.phase, engine.identity or "", engine.restarts, engine.hangs, silent)

"""`fleet watch`: the ranks of one engine over several hosts, checked again and again, and restarted together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dflash_deploy.deployment import locked
from dflash_deploy.deployment.owed_start import owe_start, owed_start, settle_start
from dflash_deploy.errors import DeployError, DirectoryBusy, EngineNotReady, NotPossible
from dflash_deploy.fleet.again import ask_again
from dflash_deploy.fleet.each import HostOutcome, failure_of_all, on_each
from dflash_deploy.fleet.prepare import RemoteFacts
from dflash_deploy.fleet.remote import error_of
from dflash_deploy.fleet.session import Session
from dflash_deploy.fleet.watching import Judgement, RankSeen, judge_ranks
from dflash_deploy.operations.fleet_engines import link_addresses, stop_engine
from dflash_deploy.operations.fleet_hosts import OpenFleet, open_fleet
from dflash_deploy.operations.fleet_ranks import look_at, start_ranks
from dflash_deploy.operations.patience import PATIENCE
from dflash_deploy.operations.reporter import SILENT, Reporter

EVERY = 10.0
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
    every: float = EVERY,
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

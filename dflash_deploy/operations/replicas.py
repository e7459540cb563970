"""Starts, restarts and changes several engines one at a time, while the others keep answering.

For a comparison it restarts a deployment without its drafter, or with another one, for as long as the comparison lasts.
If several machines serve together, only rank 0 answers requests; `refuse_other_ranks` refuses the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from dflash_deploy.checks.check import deployed_endpoint
from dflash_deploy.checks.run import QUICK, CheckReport, run_checks
from dflash_deploy.client.answers import Completion, EndpointError
from dflash_deploy.deployment.compose import member_plan
from dflash_deploy.deployment.directory import Deployment, changes, last_good, mark_restored, remember_good
from dflash_deploy.deployment.front import forget_retired_key, write_workers, written_workers
from dflash_deploy.deployment.keys import write_keys
from dflash_deploy.errors import BadInput, DeployError, EngineNotReady, NotPossible, RolledBack
from dflash_deploy.operations.reporter import Reporter, start_shown
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime.select import several_runtime
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.engine import endpoint_of, model_name
from dflash_deploy.startup.members import Member, chosen_member, foreign_of, is_foreign, members_of, proven, sorted_out
from dflash_deploy.startup.progress import remember_seconds, show_redacted
from dflash_deploy.startup.restore import temporary_settings
from dflash_deploy.startup.rolling import Routes, plan_with, roll, take_out
from dflash_deploy.startup.start import Ready, bring_up, preflight

if TYPE_CHECKING:
    from dflash_deploy.serve.router.files import RoutedEngine


THROUGH_ROUTER = 60.0
"""Seconds for a first answer through the router, which has just learned of its engines."""


@dataclass
class SeveralStart:
    """One start or change of several engines. `touched` are those that this command has restarted."""

    deployment: Deployment
    plan: Plan
    patience: float
    reporter: Reporter
    touched: list[Member] = field(default_factory=list)
    checks: CheckReport = field(default_factory=lambda: CheckReport(()))

    def run(self, *, force: bool = False, only: int | None = None) -> Ready:
        """Start engines that do not run, restart those whose settings changed, or all with `force`, one at a time.

        `only` is the number of the one engine to start or restart. Raises EngineNotReady, or RolledBack if the last
        good settings run again on the engines that were restarted.
        """
        began = time.monotonic()
        members = [member for member in members_of(self.deployment, self.plan) if only in {None, member.number}]
        routes = self._routes()
        try:
            self._drop_stopped(members)
            self._retire(routes)
            started = several_runtime(self.deployment, self.plan).start(self.reporter.note)
            stopped = [member for member in members if not _runs(member)]
            running = [member for member in members if member not in stopped]
            stale = [member for member in running if force or not member.runtime.is_current()]
            self._start_stopped(stopped, routes)
            for member in running:
                if member not in stale and not routes.has(member):
                    self._prove(member)
                    routes.add(member)
            roll(stale, routes, self._prove, drain_seconds=self._drain, note=self.reporter.note)
        except EngineNotReady as problem:
            raise self._gone_back(problem) from None
        if only is None:
            routes.only((*(member.worker for member in members), *self._foreign()))
        answer = self._first_answer()
        if only is None:
            self._settled()
        url, seconds = endpoint_of(self.deployment, self.plan).url, time.monotonic() - began
        changed = started or bool(self.touched)
        return Ready(url, model_name(self.plan), self.plan.runtime, changed, seconds, answer)

    @property
    def _drain(self) -> float:
        return self.plan.settings.drain_seconds

    def _routes(self) -> Routes:
        return Routes(self.deployment, several_runtime(self.deployment, self.plan).router.state)

    def _drop_stopped(self, members: Sequence[Member]) -> None:
        """Take engines that do not run off the router's list: it would send requests to one that is not proven yet.

        A router that does not run reads the list when it starts; one that runs, twice a second.
        """
        gone = {str(member.number) for member in members if not _runs(member)}
        listed = written_workers(self.deployment)
        kept, _ = sorted_out(listed, foreign_of(self.plan))
        gone |= {worker.id for worker in listed if is_foreign(worker) and worker not in kept}
        if any(worker.id in gone for worker in listed):
            write_workers(self.deployment, (worker for worker in listed if worker.id not in gone))

    def _retire(self, routes: Routes) -> None:
        """Take engines that are too many off the router's list, and wait for their requests: `start` stops them."""
        if several_runtime(self.deployment, self.plan).router.state().phase != "running":
            return
        here = (worker for worker in written_workers(self.deployment) if not is_foreign(worker))
        for number in (int(worker.id) for worker in here):
            member = Member(number, self.deployment.replica(number), member_plan(self.plan, number))
            if number > self.plan.settings.replicas and _runs(member):
                # the last working settings have it
                self.touched.append(member)
                take_out(member, routes, drain_seconds=self._drain, note=self.reporter.note)

    def _start_stopped(self, members: Sequence[Member], routes: Routes) -> None:
        """Prove the settings with the first engine, then start the others together."""
        for position, member in enumerate(members):
            if position == 1:
                for other in members[1:]:
                    preflight(other.deployment, other.plan, other.runtime)
                    other.runtime.start(self.reporter.note)
            self._prove(member)
            routes.add(member)
            self.reporter.note(f"{member.name} answers")

    def _prove(self, member: Member) -> None:
        """Start an engine, wait for its first answer, and run the quick checks on it. Raises EngineNotReady."""
        self.touched.append(member)
        try:
            with start_shown(self.reporter, member.deployment.redact) as show:
                ready = bring_up(member.deployment, member.plan, member.runtime, patience=self.patience, show=show)
        except EngineNotReady as problem:
            problem.message = f"{member.name}: {problem.message}"
            raise
        if ready.changed:
            remember_seconds(self.deployment, ready.phases)
        with endpoint_of(member.deployment, member.plan) as endpoint:
            self.checks = run_checks(deployed_endpoint(endpoint, member.plan), QUICK)
        if self.checks.failed:
            first = self.checks.failed[0]
            raise EngineNotReady(
                f"{member.name}: answers, but `{first.name}` failed: {' '.join(first.got.split())}",
                hint=first.hint or first.asked,
            )

    def _foreign(self) -> tuple[RoutedEngine, ...]:
        """The engines of other machines that shall get requests. One that does not answer is reported and left out."""
        found, problems = proven(self.deployment, self.plan, written_workers(self.deployment))
        for address, why in problems.items():
            self.reporter.note(f"{address} gets no requests yet: {self.deployment.redact(why)}")
        return found

    def _first_answer(self) -> Completion:
        """One answer through everything that a client's request goes through."""
        deadline = time.monotonic() + THROUGH_ROUTER
        with endpoint_of(self.deployment, self.plan) as endpoint:
            while True:
                try:
                    return endpoint.chat(self.plan.pair.text.ask, max_tokens=16)
                except EndpointError as problem:
                    if time.monotonic() > deadline:
                        raise EngineNotReady(
                            f"the engines answer, but not through the router: {problem}",
                            hint="read why with `dflash-deploy logs`",
                        ) from None
                time.sleep(0.5)

    def _settled(self) -> None:
        """All engines run these settings: remember them, and accept a replaced key no longer."""
        remember_good(self.deployment)
        forget_retired_key(self.deployment)
        write_keys(self.deployment)

    def _gone_back(self, problem: EngineNotReady) -> EngineNotReady:
        """The failure to report, after the last good settings run again on every engine that was touched."""
        good = last_good(self.deployment)
        if good is None or not changes(self.deployment):
            return problem
        plan = plan_of(good)
        if not plan.settings.several_engines:
            # the caller starts a single engine
            return problem
        self.reporter.note(f"failed: {self.deployment.redact(problem.message)}")
        self.reporter.note("going back to the last working settings")
        back = SeveralStart(good, plan, self.patience, self.reporter)
        try:
            back.restore([member.number for member in self.touched])
        except DeployError as second:
            problem.hint = f"{problem.hint}; the last working settings do not start either: {second.message}"
            return problem
        mark_restored(self.deployment, problem.message)
        what = ", ".join(map(str, changes(self.deployment)))
        return RolledBack(
            f"{problem.message}; the engines run with the last working settings again",
            hint=f"{problem.hint}; changed since: {what}. `dflash-deploy rollback` restores them in .env",
            detail=problem.detail,
            failure=problem.failure,
            fix=problem.fix,
        )

    def restore(self, numbers: Sequence[int]) -> None:
        """Run these engines with the settings of this object again, the one that failed first."""
        several_runtime(self.deployment, self.plan).start(self.reporter.note)
        routes, count = self._routes(), self.plan.settings.replicas
        for number in reversed(numbers):
            if number > count:
                continue
            member = chosen_member(self.deployment, self.plan, number)
            take_out(member, routes, drain_seconds=self._drain, note=self.reporter.note)
            member.runtime.halt()
            self._prove(member)
            routes.add(member)


def _runs(member: Member) -> bool:
    return member.runtime.state().phase == "running"


def check_speculating(plan: Plan) -> None:
    """Raise NotPossible if a deployment has no drafts to leave out."""
    if not plan.speculating:
        raise NotPossible(
            "this deployment runs without speculative decoding: there is nothing to compare with",
            hint=f"name the drafter in {Settings.dflash_drafter} of .env, then `dflash-deploy up`",
        )


def without_drafts(deployment: Deployment) -> Plan:
    """Return the plan of a deployment without its drafter; `.env` does not change."""
    return plan_with(deployment, {Settings.dflash_drafter.name: "off"})


@contextmanager
def restarts(
    deployment: Deployment, plan: Plan, *, patience: float, reporter: Reporter
) -> Iterator[Callable[[Plan], None]]:
    """Let the block restart the engine with other plans; afterwards it runs `plan` again.

    Call it from the main thread of a program. Raises EngineNotReady.
    """
    display = partial(show_redacted, reporter.starting, deployment.redact)
    with temporary_settings(deployment, plan, patience=patience, display=display) as become:

        def restart(other: Plan) -> None:
            reporter.note(f"restarting the engine {_with_what(other)}")
            become(other)

        yield restart
        reporter.note(f"restarting it {_with_what(plan)}")


def _with_what(plan: Plan) -> str:
    return "with its drafter" if plan.drafting else "with its MTP head" if plan.uses_mtp_head else "without drafts"


def refuse_other_ranks(plan: Plan) -> None:
    """Raise BadInput on a machine that computes for rank 0 and answers no requests."""
    if not plan.settings.answers_requests:
        raise BadInput(
            f"this machine is rank {plan.settings.node_rank}: only rank 0 answers requests",
            hint="run it in the deployment of rank 0",
        )

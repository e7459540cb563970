"""Runs the checks against one endpoint, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from dflash_deploy.checks import access, answers, drafts, formats, lengths, lossless, mixed, pictures, traffic
from dflash_deploy.checks.check import (
    CheckOutcome,
    CheckResult,
    CheckSkipped,
    CheckStatus,
    EndpointCheck,
    EndpointUnderTest,
)
from dflash_deploy.client.answers import EndpointError

# Every check by name, in the order in which they run: cheap checks that explain later failures come first.
CHECKS: dict[str, EndpointCheck] = {
    found.name: found
    for module in (access, lossless, answers, pictures, formats, lengths, traffic, mixed, drafts)
    for found in vars(module).values()
    if isinstance(found, EndpointCheck)
}

# Checks that are fast even on a slow engine: `up` ends with them.
QUICK = frozenset(name for name, check in CHECKS.items() if check.quick)

_NOT_RUN = "not run: "

NOT_READY = "check whether the engine is ready: `dflash-deploy status`"


@dataclass(frozen=True)
class CheckReport:
    """All checks that ran."""

    checks: tuple[CheckResult, ...]

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def skipped(self) -> tuple[CheckResult, ...]:
        """The checks that could not decide right from wrong."""
        return tuple(check for check in self.checks if check.status == "skipped")

    def figure(self, name: str) -> float | None:
        """Return a number that a check measured, such as `tokens_per_second` of one request including prefill."""
        return next((check.figures[name] for check in self.checks if name in check.figures), None)

    def redacted(self, redact: Callable[[str], str]) -> list[CheckResult]:
        """Return the checks without secrets: an endpoint may echo its key."""
        return [replace(check, asked=redact(check.asked), got=redact(check.got)) for check in self.checks]


def run_checks(
    tested: EndpointUnderTest, names: Collection[str] = (), *, show: Callable[[CheckResult], None] = lambda check: None
) -> CheckReport:
    """Run the named checks, or all, and show each result. A check without an answer fails.

    After a check that timed out, the remaining checks fail as "not run", since each would wait as long.
    """
    done: list[CheckResult] = []
    for name, check in CHECKS.items():
        if name in names or not names:
            timed_out = bool(done) and done[-1].silent
            done.append(_not_run(name, done[-1]) if timed_out else _result_of(check, tested))
            show(done[-1])
    return CheckReport(tuple(done))


def _result_of(check: EndpointCheck, tested: EndpointUnderTest) -> CheckResult:
    name, started, silent = check.name, time.monotonic(), False
    try:
        outcome = check.run(tested)
    except CheckSkipped as reason:
        return CheckResult(name, "skipped", round(time.monotonic() - started, 3), reason.asked, reason.reason)
    except EndpointError as problem:
        silent = problem.silent
        outcome = CheckOutcome(False, name, str(problem), tested.explain(problem) or NOT_READY)
    seconds = round(time.monotonic() - started, 3)
    if not outcome.right and outcome.of_model and tested.questions.unknown:
        unsure = f"the answers of this model are not known, and this one is not the expected one: {outcome.got[:200]}"
        return CheckResult(name, "skipped", seconds, outcome.asked, unsure)
    hint = "" if outcome.right else outcome.hint
    status: CheckStatus = "passed" if outcome.right else "failed"
    return CheckResult(name, status, seconds, outcome.asked, outcome.got, hint, outcome.figures, silent)


def _not_run(name: str, before: CheckResult) -> CheckResult:
    """Return the result of a check after one that timed out."""
    why = before.got.removeprefix(_NOT_RUN)
    return CheckResult(name, "failed", 0.0, "nothing", f"{_NOT_RUN}{why}", before.hint, silent=True)

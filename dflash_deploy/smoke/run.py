"""Running the checks, one after the other, against one endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dflash_deploy.catalog import ModelPair
from dflash_deploy.client import Endpoint, EndpointError, SpecCounters
from dflash_deploy.smoke import checks
from dflash_deploy.smoke.checks import Outcome


@dataclass(frozen=True)
class Check:
    """One line of the report: how many seconds it took, and the rate of one stream where it was measured."""

    name: str
    status: checks.Status
    seconds: float
    asked: str
    got: str
    hint: str
    tokens_per_second: float | None


@dataclass(frozen=True)
class SmokeReport:
    """All checks, and the acceptance length over them (`None` without a drafter)."""

    checks: tuple[Check, ...]
    acceptance_length: float | None

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def tokens_per_second(self) -> float | None:
        """Completion tokens per second of one stream, prefill included."""
        return next((check.tokens_per_second for check in self.checks if check.tokens_per_second), None)

    def rows(self) -> list[dict[str, object]]:
        """The checks as rows for `--json`."""
        names = ("name", "status", "seconds", "asked", "got", "hint")
        return [{name: getattr(check, name) for name in names} for check in self.checks]


def run_checks(
    endpoint: Endpoint,
    pair: ModelPair,
    *,
    drafting: bool,
    counted: bool = True,
    locked: bool = True,
    show: Callable[[Check], None] = lambda check: None,
) -> SmokeReport:
    """Run every check and show each as it ends. A check that gets no answer has failed; the others still run.

    `counted` says whether the engine counts drafts in a way that is read here; without, that check is skipped aloud.
    `locked` says whether it has `dflash_deploy.serve.auth` in front, which closes more than /v1.
    """
    done: list[Check] = []

    def run(name: str, check: Callable[[], Outcome]) -> None:
        done.append(_timed(name, check))
        show(done[-1])

    before = _counters(endpoint)
    run("models", lambda: checks.served_name(endpoint))
    run("auth", lambda: checks.closed(endpoint, checks.GUARDED + (checks.LEFT_OPEN if locked else ())))
    run("text", lambda: checks.text(endpoint, pair))
    run("stream", lambda: checks.streaming(endpoint, pair))
    if pair.sees:
        run("vision", lambda: checks.vision(endpoint, pair))
    length = None
    if drafting and not counted:
        got = "this engine's counters of drafts are not read yet: whether it drafts stands in its log"
        done.append(Check("drafts", "skipped", 0.0, "GET /metrics", got, "", None))
        show(done[-1])
    elif drafting:
        after = _counters(endpoint)
        if before is None or after is None:
            run("drafts", lambda: Outcome(False, "GET /metrics", "no answer", "is this the engine's own port?"))
        else:
            gained = after - before
            length = gained.acceptance_length
            run("drafts", lambda: checks.drafts(gained))
    return SmokeReport(tuple(done), length)


def _counters(endpoint: Endpoint) -> SpecCounters | None:
    try:
        return endpoint.counters()
    except EndpointError:
        return None


def _timed(name: str, check: Callable[[], Outcome]) -> Check:
    started = time.monotonic()
    try:
        outcome = check()
    except EndpointError as problem:
        outcome = Outcome(False, name, str(problem), "is the engine ready? `dflash-deploy status` looks")
    seconds = round(time.monotonic() - started, 3)
    status: checks.Status = "passed" if outcome.right else "failed"
    hint = "" if outcome.right else outcome.hint
    return Check(name, status, seconds, outcome.asked, outcome.got, hint, outcome.tokens_per_second)

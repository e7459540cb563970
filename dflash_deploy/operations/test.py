"""`test`: whether an endpoint is right, fast and closed.

The endpoint belongs to a deployment, or has only a URL. The checks of a deployment also cover what it publishes:
through its door, and each of its routes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.check import (
    Baseline,
    CheckResult,
    EndpointUnderTest,
    deployed_endpoint,
    unknown_endpoint,
)
from dflash_deploy.checks.lossless import NOT_OWN
from dflash_deploy.checks.run import CHECKS, CheckReport, run_checks
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import START_IT, Endpoint, check_answering
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.journal import engine_work, record
from dflash_deploy.deployment.lock import locked
from dflash_deploy.diagnosis.diagnose import LogReader
from dflash_deploy.document import AcceptanceLength, Documented, Hidden, Rate, shown
from dflash_deploy.errors import BadInput, SmokeTestFailed
from dflash_deploy.operations.addresses import CHECK_URL, address_of
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.restarts import check_speculating, refuse_other_ranks, restarts, without_drafts
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import Redact, Redactor, Secret
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.engine import endpoint_of, log_reader_for, published_of, whole_endpoint, whole_url
from dflash_deploy.startup.start import hints_from

AT_DOOR = frozenset({"live", "models", "auth", "stream"})  # checks of `test` that are repeated through the door
DOOR = "door"  # the name of all checks through the door, for `only`
LOSSLESS = "lossless"
_BY_WORKLOAD = "acceptance_length of "


@dataclass(frozen=True)
class Tested(Documented):
    """The result of `test`."""

    endpoint: Hidden[str]
    model: Hidden[str]
    deployment: Hidden[Deployment | None]
    """`None` if only the URL is known."""
    report: Hidden[CheckReport]
    redact: Hidden[Redact]
    """Hides the key of the endpoint."""

    @property
    def failure(self) -> SmokeTestFailed | None:
        """The checks that failed, as an error; `None` if all passed or were skipped."""
        failed = self.report.failed
        if not failed:
            return None
        names = ", ".join(check.name for check in failed)
        count = f"{len(failed)} of {len(self.report.checks)} checks failed: {names}"
        # before any other finding: wrong answers make most other checks fail too, with causes that are not theirs
        changed = next((check for check in failed if check.name == LOSSLESS and NOT_OWN in check.got), None)
        if changed:
            return SmokeTestFailed(f"{NOT_OWN}; {count}", hint=changed.hint)
        return SmokeTestFailed(count, hint=failed[0].hint)

    @property
    @shown
    def checks(self) -> Sequence[CheckResult]:
        """All checks that ran, in their order."""
        return self.report.redacted(self.redact)

    @property
    @shown
    def acceptance_length(self) -> AcceptanceLength | None:
        """Acceptance length over the workloads of the check `drafts`, in tokens per step; null if it was not measured."""  # noqa: E501 - one line, as in the schema
        return self.report.figure("acceptance_length")

    @property
    @shown
    def acceptance_by_workload(self) -> Mapping[str, AcceptanceLength]:
        """The same by workload; empty if it was not measured."""
        return {
            name.removeprefix(_BY_WORKLOAD): value
            for check in self.report.checks
            for name, value in check.figures.items()
            if name.startswith(_BY_WORKLOAD)
        }

    @property
    @shown
    def tokens_per_second(self) -> Rate | None:
        """Tokens per second of one request, prompt included; null if it was not measured."""
        return self.report.figure("tokens_per_second")


def test(
    directory: Path,
    *,
    only: Collection[str] = (),
    baseline: bool = False,
    baseline_url: str | None = None,
    patience: float = PATIENCE,
    reporter: Reporter = SILENT,
) -> Tested:
    """Check the endpoint of a deployment: all checks, or those that `only` names.

    `baseline` also compares the answers with those without speculative decoding: the engine restarts for it and back,
    and the program must then call from its main thread. `baseline_url` compares with another endpoint of the same
    target, without speculative decoding and with the same API key. Raises BadInput for an unknown check and on a rank
    that answers no requests, NoDeployment, SettingsRefused, EngineNotReady if nothing answers; NotPossible with
    `baseline`.
    """
    names = check_names(set(only) - {DOOR}, compared=baseline or baseline_url is not None)
    if baseline and baseline_url is not None:
        raise BadInput("--baseline and --baseline-url exclude each other", hint="use one of them")
    with ExitStack() as stack:
        deployment = stack.enter_context(locked(directory, "test")) if baseline else Deployment.existing(directory)
        plan = plan_of(deployment)
        refuse_other_ranks(plan)
        if set(only) == {DOOR}:
            return _door_only(deployment, plan, reporter)
        endpoint = stack.enter_context(endpoint_of(deployment, plan))
        if baseline:
            check_speculating(plan)
        beside = _baseline(stack, baseline_url, deployment.key, endpoint.model)
        check_answering(endpoint, hint=START_IT, redact=deployment.redact)
        if baseline:
            stack.enter_context(engine_work(deployment, "test"))
            beside = partial(_restarted, deployment, plan, endpoint, patience, reporter)
        # the answer explains a refused request, else the log of the deployment
        explain = hints_from(log_reader_for(plan), lambda: runtime_for(deployment, plan).read_log().lines)
        subject = deployed_endpoint(endpoint, plan, beside, explain=explain)
        done = run_shown(subject, names, deployment.redact, reporter, deployment)
        if baseline:
            record(deployment, "measured", "test", "restarted the engine without its drafter, then with .env")
        at_door = _at_door(deployment, plan, names, reporter)
        where = whole_url(deployment, plan)
        return replace(done, endpoint=f"{where}/v1", report=CheckReport((*done.report.checks, *at_door)))


def _door_only(deployment: Deployment, plan: Plan, reporter: Reporter) -> Tested:
    """The checks through the door. Raises BadInput without one."""
    checks = _at_door(deployment, plan, set(), reporter)
    if not checks:
        raise BadInput("this deployment has no domain", hint="leave --only door out")
    with endpoint_of(deployment, plan) as endpoint:
        where = f"{whole_url(deployment, plan)}/v1"
        return Tested(where, endpoint.model, deployment, CheckReport(checks), deployment.redact)


def _at_door(deployment: Deployment, plan: Plan, names: set[str], reporter: Reporter) -> tuple[CheckResult, ...]:
    """The results of these checks, or of all that are repeated, through the door; empty without a domain."""
    wanted = names & AT_DOOR if names else AT_DOOR
    if not wanted or published_of(deployment, plan) is None:
        return ()
    done: list[CheckResult] = []

    def show(check: CheckResult) -> None:
        done.append(replace(check, name=f"{DOOR}: {check.name}"))
        reporter.checked(replace(done[-1], got=deployment.redact(check.got), hint=deployment.redact(check.hint)))

    with whole_endpoint(deployment, plan) as endpoint:
        run_checks(deployed_endpoint(endpoint, plan), wanted, show=show)
    return tuple(done)


@contextmanager
def _restarted(
    deployment: Deployment, plan: Plan, endpoint: Endpoint, patience: float, reporter: Reporter
) -> Iterator[Endpoint]:
    """Restart the engine without its drafter for the time of the block."""
    with restarts(deployment, plan, patience=patience, reporter=reporter) as restart_with:
        restart_with(without_drafts(deployment))
        yield endpoint


def test_url(
    url: str,
    key: Secret,
    *,
    model: str = "",
    only: Collection[str] = (),
    baseline_url: str | None = None,
    reporter: Reporter = SILENT,
) -> Tested:
    """Check any endpoint by its URL. `model` is the served name to ask, the first one if it is empty.

    The answer to a request that fails is compared with the known failures; their cause and remedy are the check's hint.
    Raises BadInput, EngineNotReady if nothing answers, SmokeTestFailed if the endpoint does not list its models.
    """
    names, redact = check_names(only, compared=baseline_url is not None), Redactor([key])
    with ExitStack() as stack:
        nameless = stack.enter_context(Endpoint(address_of(url), key, "", proxies=True))
        if baseline_url is not None:
            # before anything is asked
            address_of(baseline_url)
        check_answering(nameless, hint="check the URL, and whether its server runs", redact=redact)
        named = model or first_model(nameless, redact)
        endpoint = stack.enter_context(Endpoint(address_of(url), key, named, proxies=True))
        baseline = _baseline(stack, baseline_url, key, named)
        subject = unknown_endpoint(endpoint, load_catalog(), baseline)
        # its log is elsewhere: only what it answers can tell why it refuses a request
        reader = LogReader(load_catalog().failures, subject.engine.name if subject.engine else "", "")
        subject = replace(subject, explain=hints_from(reader, tuple))
        return run_shown(subject, names, redact, reporter, None)


def check_names(only: Collection[str], *, compared: bool) -> set[str]:
    """The names of the checks to run; empty for all. Raises BadInput."""
    names = set(only)
    if unknown := sorted(names - CHECKS.keys()):
        raise BadInput(f"`{unknown[0]}` is not a check", hint=f"checks: {', '.join(CHECKS)}, {DOOR}")
    return names | {LOSSLESS} if compared and names else names


def _baseline(stack: ExitStack, url: str | None, key: Secret, model: str) -> Baseline | None:
    if url is None:
        return None
    beside = stack.enter_context(Endpoint(address_of(url), key, model, proxies=True))
    return lambda: nullcontext(beside)


def first_model(nameless: Endpoint, redact: Redact) -> str:
    """The first model that an endpoint lists. Raises SmokeTestFailed."""
    try:
        return next(iter(nameless.models()), "")
    except EndpointError as problem:
        raise SmokeTestFailed(
            f"{nameless.url} does not list the models it serves: {redact(str(problem))}",
            hint=CHECK_URL,
        ) from None


def run_shown(
    subject: EndpointUnderTest,
    names: set[str],
    redact: Redact,
    reporter: Reporter,
    deployment: Deployment | None,
) -> Tested:
    """Run the checks, and show each."""

    def show(check: CheckResult) -> None:
        reporter.checked(replace(check, got=redact(check.got), hint=redact(check.hint)))

    report = run_checks(subject, names, show=show)
    return Tested(f"{subject.endpoint.url}/v1", subject.endpoint.model, deployment, report, redact)

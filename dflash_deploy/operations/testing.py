"""`test`: is an endpoint right, fast and closed? That of a deployment, or any other by its URL."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_deploy.catalog import load_catalog
from dflash_deploy.checks import (
    CHECKS,
    CheckReport,
    CheckResult,
    EndpointUnderTest,
    deployed_endpoint,
    run_checks,
    unknown_endpoint,
)
from dflash_deploy.checks.junit import junit
from dflash_deploy.client import Endpoint, EndpointError
from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.outputs import write_output
from dflash_deploy.errors import BadInput, SmokeTestFailed
from dflash_deploy.operations.addresses import address_of
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import Redact, Redactor, Secret
from dflash_deploy.startup import endpoint_of

_BY_WORKLOAD = "acceptance_length of "


@dataclass(frozen=True)
class Tested:
    """The checks of an endpoint. `deployment` is `None` if only its URL is known; `redact` hides its key."""

    endpoint: str
    model: str
    deployment: Deployment | None
    report: CheckReport
    redact: Redact

    @property
    def failure(self) -> SmokeTestFailed | None:
        """The checks that failed, as an error; `None` if all passed or were skipped."""
        failed = self.report.failed
        if not failed:
            return None
        names = ", ".join(check.name for check in failed)
        return SmokeTestFailed(
            f"{len(failed)} of {len(self.report.checks)} checks failed: {names}", hint=failed[0].hint
        )

    @property
    def acceptance_length(self) -> float | None:
        """Mean acceptance length over the workloads of the check `drafts`; `None` if it was not measured."""
        return self.report.figure("acceptance_length")

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second at concurrency 1, prefill included; `None` if they were not measured."""
        return self.report.figure("tokens_per_second")

    def document(self) -> dict[str, object]:
        """The `data` of `test --json`."""
        by_workload = {
            name.removeprefix(_BY_WORKLOAD): value
            for check in self.report.checks
            for name, value in check.figures.items()
            if name.startswith(_BY_WORKLOAD)
        }
        return {
            "checks": self.report.rows(self.redact),
            "acceptance_length": self.acceptance_length,
            "acceptance_by_workload": by_workload,
            "tokens_per_second": self.tokens_per_second,
        }

    def write_junit(self, file: Path) -> None:
        """Write the checks as JUnit XML. Raises BadInput and PreflightRefused if the file cannot be written."""
        write_output(file, junit(self.report, self.redact))


def test(
    directory: Path, *, only: Collection[str] = (), baseline_url: str | None = None, reporter: Reporter = SILENT
) -> Tested:
    """Check the endpoint of a deployment: all checks, or those that `only` names.

    `baseline_url` is an endpoint of the same target without speculative decoding, with the same API key: then the
    answers are compared too. Raises BadInput for an unknown check, NoDeployment, SettingsRefused.
    """
    names = _names(only, baseline_url)
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    with ExitStack() as stack:
        endpoint = stack.enter_context(endpoint_of(deployment, plan))
        baseline = _baseline(stack, baseline_url, deployment.key, endpoint.model)
        subject = deployed_endpoint(endpoint, plan, baseline)
        return _run(subject, names, deployment.redact, reporter, deployment)


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

    Raises BadInput, and SmokeTestFailed if the endpoint does not list its models.
    """
    names, redact = _names(only, baseline_url), Redactor([key])
    with ExitStack() as stack:
        named = model or _first_model(url, key, redact)
        endpoint = stack.enter_context(Endpoint(address_of(url), key, named, proxies=True))
        baseline = _baseline(stack, baseline_url, key, named)
        return _run(unknown_endpoint(endpoint, load_catalog(), baseline), names, redact, reporter, None)


def _names(only: Collection[str], baseline_url: str | None) -> set[str]:
    names = set(only)
    if unknown := sorted(names - CHECKS.keys()):
        raise BadInput(f"`{unknown[0]}` is not a check", hint=f"checks: {', '.join(CHECKS)}")
    return names | {"lossless"} if baseline_url is not None and names else names


def _baseline(stack: ExitStack, url: str | None, key: Secret, model: str) -> Endpoint | None:
    if url is None:
        return None
    return stack.enter_context(Endpoint(address_of(url), key, model, proxies=True))


def _first_model(url: str, key: Secret, redact: Redact) -> str:
    with Endpoint(address_of(url), key, "", proxies=True) as nameless:
        try:
            return next(iter(nameless.models()), "")
        except EndpointError as problem:
            raise SmokeTestFailed(
                f"{url} does not list the models it serves: {redact(str(problem))}",
                hint="check the URL, without /v1, and that --key-file holds its API key",
            ) from None


def _run(
    subject: EndpointUnderTest, names: set[str], redact: Redact, reporter: Reporter, deployment: Deployment | None
) -> Tested:
    def show(check: CheckResult) -> None:
        reporter.checked(replace(check, got=redact(check.got), hint=redact(check.hint)))

    report = run_checks(subject, names, show=show)
    return Tested(f"{subject.endpoint.url}/v1", subject.endpoint.model, deployment, report, redact)

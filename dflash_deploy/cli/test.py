"""`test`: prove that an endpoint is right, fast and closed, a deployment's own or somebody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.remote import KeyFile, address_of, key_in
from dflash_deploy.cli.report import HERE, Directory, Json, Redact, Report, console, verb
from dflash_deploy.errors import BadInput, SmokeTestFailed

if TYPE_CHECKING:
    from dflash_deploy.checks import CheckReport, CheckResult, EndpointUnderTest
    from dflash_deploy.redact import Secret

Only = Annotated[str, typer.Option("--only", help="Checks to run, by name, with commas between.")]


@verb
def test(
    directory: Directory = HERE,
    only: Only = "",
    url: Annotated[str, typer.Option(help="Another endpoint, as http://host:port; no deployment is needed.")] = "",
    key_file: KeyFile = None,
    model: Annotated[str, typer.Option(help="The served name to ask at --url; else the first one.")] = "",
    baseline_url: Annotated[
        str, typer.Option(help="The same target without a drafter, with the same key: are the answers the same?")
    ] = "",
    junit: Annotated[Path | None, typer.Option(help="Also write the report as JUnit XML.", dir_okay=False)] = None,
    as_json: Json = False,
) -> Report:
    """Check answers, streams, vision, the key, limits, and that drafts are made and accepted."""
    from dflash_deploy.checks import CHECKS, run_checks

    names = {name for name in only.replace(",", " ").split() if name}
    if unknown := sorted(names - CHECKS.keys()):
        raise BadInput(f"there is no check {unknown[0]!r}", hint=f"the checks are {', '.join(CHECKS)}")
    if (key_file or model) and not url:
        raise BadInput("--key-file and --model belong to --url", hint="a deployment says both in its .env")
    if baseline_url and names:
        names.add("lossless")
    with ExitStack() as open_ones:
        secret = key_in(key_file) if url else None
        chosen = _stranger(url, secret, model, baseline_url) if secret is not None else _own(directory, baseline_url)
        subject, redact, ending = open_ones.enter_context(chosen)
        report = run_checks(subject, names, show=_shower(redact, stderr=as_json))
    if junit is not None:
        _save(junit, report, redact)
    return _report(report, ending, redact)


def _report(report: CheckReport, ending: tuple[str, ...], redact: Redact) -> Report:
    length, rate = report.figure("acceptance_length"), report.figure("tokens_per_second")
    prefix = "acceptance_length of "
    by_workload = {
        name.removeprefix(prefix): value
        for check in report.checks
        for name, value in check.figures.items()
        if name.startswith(prefix)
    }
    data = {
        "checks": report.rows(redact),
        "acceptance_length": length,
        "acceptance_by_workload": by_workload,
        "tokens_per_second": rate,
    }
    ran, skipped = len(report.checks), len(report.skipped)
    if report.failed:
        names = ", ".join(check.name for check in report.failed)
        said = f"{len(report.failed)} of {ran} checks failed: {names}"
        return Report(data, failure=SmokeTestFailed(said, hint=report.failed[0].hint))
    return Report(
        data,
        (
            f"{ran - skipped} checks passed, {skipped} skipped" if skipped else f"all {ran} checks passed",
            "",
            ending[0],
            *([f"speed      {rate:.0f} tokens/s on one stream"] if rate else []),
            *([f"drafts     acceptance length {length:.2f}"] if length else []),
            *ending[1:],
        ),
    )


Chosen = tuple["EndpointUnderTest", Redact, tuple[str, ...]]
"""What is tested, what hides its key, and the last lines for people."""


@contextmanager
def _own(directory: Path, baseline_url: str) -> Iterator[Chosen]:
    """The endpoint of a deployment."""
    from dflash_deploy.checks import deployed_endpoint
    from dflash_deploy.client import Endpoint
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.startup import endpoint_of

    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    with ExitStack() as open_ones:
        endpoint = open_ones.enter_context(endpoint_of(deployment, plan))
        baseline = None
        if baseline_url:
            baseline = open_ones.enter_context(
                Endpoint(address_of(baseline_url), deployment.key, endpoint.model, proxies=True)
            )
        ending = (
            f"endpoint   {endpoint.url}/v1, model {endpoint.model}",
            f"key        VLLM_API_KEY in {deployment.env_file}",
            f"stop it    dflash-deploy down --dir {deployment.directory}",
        )
        yield deployed_endpoint(endpoint, plan, baseline), deployment.redact, ending


@contextmanager
def _stranger(url: str, key: Secret, model: str, baseline_url: str) -> Iterator[Chosen]:
    """An endpoint that is known by its address alone."""
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.checks import unknown_endpoint
    from dflash_deploy.client import Endpoint, EndpointError
    from dflash_deploy.redact import Redactor

    redact = Redactor([key])
    with ExitStack() as open_ones:
        if not model:
            with Endpoint(address_of(url), key, "", proxies=True) as nameless:
                try:
                    model = next(iter(nameless.models()), "")
                except EndpointError as problem:
                    raise SmokeTestFailed(
                        f"{url} does not say which models it serves: {redact(str(problem))}",
                        hint="is the address right, without /v1, and --key-file the endpoint's key?",
                    ) from None
        endpoint = open_ones.enter_context(Endpoint(address_of(url), key, model, proxies=True))
        baseline = None
        if baseline_url:
            baseline = open_ones.enter_context(Endpoint(address_of(baseline_url), key, model, proxies=True))
        ending = (f"endpoint   {endpoint.url}/v1, model {endpoint.model}",)
        yield unknown_endpoint(endpoint, load_catalog(), baseline), redact, ending


def _save(file: Path, report: CheckReport, redact: Redact) -> None:
    from dflash_deploy.checks import junit as written

    try:
        file.write_text(written(report, redact), encoding="utf-8")
    except OSError as problem:
        raise BadInput(f"{file} cannot be written: {problem}", hint="--junit names a file to write") from None


def _shower(redact: Redact, *, stderr: bool) -> Callable[[CheckResult], None]:
    """Shows each check as it ends, on standard error where standard output belongs to a document."""
    screen = console(stderr=stderr)

    def show(check: CheckResult) -> None:
        style = {"passed": "green", "skipped": "yellow"}.get(check.status, "bold red")
        screen.print(f"{check.status:7}", style=style, end="")
        screen.print(redact(f" {check.name:9} {check.seconds:5.2f} s  {' '.join(check.got.split())}"), markup=False)
        if check.hint:
            screen.print(redact(f"        hint: {check.hint}"), markup=False)

    return show

"""`test`: prove that the endpoint is right, fast and closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, Report, console, verb
from dflash_deploy.errors import SmokeTestFailed

if TYPE_CHECKING:
    from dflash_deploy.smoke.run import Check


@verb
def test(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Check text, streaming, vision, the key, and that drafts are made and accepted."""
    from dflash_deploy.boot import endpoint_of
    from dflash_deploy.project import Deployment
    from dflash_deploy.smoke import run_checks

    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    redact = deployment.redact
    screen = console(stderr=as_json)

    def show(check: Check) -> None:
        style = {"passed": "green", "skipped": "yellow"}.get(check.status, "bold red")
        screen.print(f"{check.status:7}", style=style, end="")
        screen.print(redact(f"{check.name:7} {check.seconds:6.2f} s  {' '.join(check.got.split())}"), markup=False)
        if check.hint:
            screen.print(redact(f"        hint: {check.hint}"), markup=False)

    with endpoint_of(deployment, plan) as endpoint:
        vllm = plan.engine.engine == "vllm"
        report = run_checks(endpoint, plan.pair, drafting=plan.drafting, counted=vllm, locked=vllm, show=show)
    length, rate = report.acceptance_length, report.tokens_per_second
    data = {"checks": report.rows(), "acceptance_length": length, "tokens_per_second": rate}
    if report.failed:
        names = ", ".join(check.name for check in report.failed)
        said = f"{len(report.failed)} of {len(report.checks)} checks failed: {names}"
        return Report(data, failure=SmokeTestFailed(said, hint=report.failed[0].hint))
    skipped = len([check for check in report.checks if check.status == "skipped"])
    drafts = f"acceptance length {length:.2f}" if length else "not counted" if skipped else "none: plain decoding"
    shown = (
        f"all {len(report.checks)} checks passed"
        if not skipped
        else f"{len(report.checks) - skipped} checks passed, {skipped} skipped",
        "",
        f"endpoint   {endpoint.url}/v1, model {endpoint.model}",
        f"key        VLLM_API_KEY in {deployment.env_file}",
        f"speed      {rate or 0:.0f} tokens/s on one stream",
        f"drafts     {drafts}",
        f"stop it    dflash-deploy down --dir {deployment.directory}",
    )
    return Report(data, shown)

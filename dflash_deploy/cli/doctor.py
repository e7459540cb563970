"""`doctor`: what would keep this machine from serving, before it is tried."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import make_plan
from dflash_deploy.cli.report import HERE, Directory, Json, Report, verb

if TYPE_CHECKING:
    from rich.text import Text

    from dflash_deploy.doctor import Check, DoctorContext

_STYLES = {"ok": "green", "warning": "yellow", "no": "bold red", "skipped": "dim"}


@verb
def doctor(
    directory: Directory = HERE,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also start a container with the GPUs, if an image is here.")
    ] = False,
    as_json: Json = False,
) -> Report:
    """Look for whatever would keep the deployment from starting, and say what to do about it.

    Without a deployment in the directory, the one that would be planned for this machine is examined.
    """
    from dflash_deploy.doctor import run_checks
    from dflash_deploy.errors import PreflightRefused

    checks = run_checks(_subject(directory, probe=probe))
    refused = [check.name for check in checks if check.status == "no"]
    failure = None
    if refused:
        failure = PreflightRefused(
            f"{len(refused)} of {len(checks)} checks say no: {', '.join(refused)}",
            hint="what to do stands below each of them; then run `dflash-deploy doctor` again",
        )
    return Report({"checks": [asdict(check) for check in checks]}, _shown(checks), failure=failure)


def _subject(directory: Path, *, probe: bool) -> DoctorContext:
    """The machine is read once; a plan that cannot be made is a finding, not the end."""
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.doctor import DoctorContext
    from dflash_deploy.doctor.hub import HUB
    from dflash_deploy.errors import DeployError
    from dflash_deploy.host import read_facts
    from dflash_deploy.plan import Choice
    from dflash_deploy.redact import Secret
    from dflash_deploy.runtime import runtime_for

    facts, hub = read_facts(), os.environ.get("HF_ENDPOINT") or HUB
    token = Secret(os.environ.get("HF_TOKEN", ""))
    deployment = Deployment(directory) if Deployment(directory).exists() else None
    try:
        if deployment is not None:
            deployment = Deployment.existing(directory)
            token = deployment.secrets["HF_TOKEN"] or token
            hub = os.environ.get("HF_ENDPOINT") or deployment.values.get("HF_ENDPOINT") or HUB
        choice = Choice(edited=deployment.values) if deployment else Choice()
        plan = make_plan(choice, deployment, facts)
    except DeployError as refusal:
        return DoctorContext(facts, refusal=refusal, deployment=deployment, token=token, hub=hub, probe=probe)
    runtime = runtime_for(deployment, plan) if deployment else None
    return DoctorContext(facts, plan, None, deployment, runtime, token, hub, probe)


def _shown(checks: tuple[Check, ...]) -> tuple[Text, ...]:
    """One line for each check, and one below it where there is something to do."""
    from rich.text import Text

    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(Text.assemble((f"{check.status:8}", _STYLES[check.status]), f"{check.name:{width}}  {check.saw}"))
        if check.fix and check.status != "ok":
            lines.append(Text(f"{'':8}{'':{width}}  {check.fix}", style="dim"))
    counted = [f"{sum(check.status == status for check in checks)} {status}" for status in ("ok", "warning", "no")]
    return (*lines, Text(", ".join(counted)))

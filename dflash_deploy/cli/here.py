"""`dflash-deploy` without arguments: what this directory and this machine are, and the next command. `list`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from dflash_deploy.cli.command import command
from dflash_deploy.cli.options import machine_line
from dflash_deploy.cli.shared import HERE
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import DeployError

if TYPE_CHECKING:
    from dflash_deploy.operations.here import Look

# What each command that may be next does.
MEANS = {
    "init": "write settings for this machine",
    "profiles": "choose the nearest for `init --profile NAME`",
    "doctor": "find what is wrong, each finding with a fix",
    "pull": "fetch the weights, verified",
    "up": "start the engine, wait for its answer",
    "status": "whether the engine really answers",
    "logs": "what the engine writes",
}


@command()
def here(*, directory: Path) -> Report:
    """Show what this directory and this machine are, and the next command."""
    from dflash_deploy.operations.here import look

    found = look(directory)
    return Report({}, tuple(_shown(found)))


@command(examples=("list", "list --json"))
def list() -> Report:  # noqa: A001 - the name of the command
    """List the deployments here and below ~/dflash, running or not."""
    from dflash_deploy.cli.report import deployments_table
    from dflash_deploy.operations.here import deployments

    found = deployments(HERE)
    if not found.deployments:
        return Report(found, ("no deployments yet", "next       dflash-deploy up --yes   start this machine's default"))
    first = found.deployments[0]
    there = "" if first.directory == HERE.absolute() else f" --dir {quote(first.name)}"
    return Report(found, (deployments_table(found), "", f"next       dflash-deploy status{there}"))


def _shown(found: Look) -> Iterator[str]:
    yield from _directory(found)
    yield f"machine    {machine_line(found.facts)}"
    fitting = found.fitting
    if isinstance(fitting, DeployError):
        yield f"profile    {fitting.message}"
    elif found.deployed is None:
        yield f"profile    {fitting.name} fits: {fitting.title}"
    arguments = found.next_command
    yield f"next       dflash-deploy {arguments:8}  {MEANS[arguments]}"
    yield "           dflash-deploy --help    all commands"


def _directory(found: Look) -> Iterator[str]:
    from dflash_deploy.cli.report import ENGINE

    deployed = found.deployed
    if deployed is None:
        yield f"directory  {found.directory}: no deployment yet"
    elif isinstance(deployed, DeployError):
        yield f"directory  {found.directory}: a deployment that cannot be used"
        yield f"cause      {deployed.message}"
    else:
        plan = deployed.plan
        yield f"directory  {found.directory}: a deployment"
        yield f"serves     {plan.pair.name} with profile {plan.profile.name}, runtime {plan.runtime}"
        yield f"engine     {ENGINE.get(deployed.phase, deployed.phase)}"
        if deployed.unapplied:
            yield f"settings   {deployed.unapplied}"
        yield f"weights    {deployed.weights_problem or 'present'}"

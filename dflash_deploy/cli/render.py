"""`render`: write compose.yaml from .env."""

from __future__ import annotations

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, Report, verb


@verb
def render(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Write compose.yaml and the image's build context from .env. `up` does the same by itself."""
    from dflash_deploy.deployment import Deployment, hold
    from dflash_deploy.deployment import render as write

    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    with hold(deployment, "render"):
        changed = write(deployment, plan)
    said = "wrote" if changed else "unchanged:"
    data = {"file": str(deployment.compose_file), "changed": changed}
    return Report(data, (f"{said} {deployment.compose_file}",), plan.findings)

"""`doctor`: what would keep this machine from serving."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from dflash_deploy.cli.options import HERE, Directory, Json
from dflash_deploy.cli.report import Report, command
from dflash_deploy.doctor import Check
from dflash_deploy.operations import examining

_STYLES = {"ok": "green", "warning": "yellow", "no": "bold red", "skipped": "dim"}


@command
def doctor(
    directory: Directory = HERE,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also start a container with the GPUs, if an image is here.")
    ] = False,
    as_json: Json = False,
) -> Report:
    """Find what would keep the deployment from starting. Each finding comes with a fix.

    Without a deployment in the directory, the one that would be planned for this machine is examined.
    """
    done = examining.doctor(directory, probe=probe)
    return Report(done.document(), _shown(done.checks), failure=done.failure)


def _shown(checks: tuple[Check, ...]) -> tuple[Text, ...]:
    """One line for each check, and one below it with the fix if it needs one."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(Text.assemble((f"{check.status:8}", _STYLES[check.status]), f"{check.name:{width}}  {check.saw}"))
        if check.fix and check.status != "ok":
            lines.append(Text(f"{'':8}{'':{width}}  {check.fix}", style="dim"))
    counted = [f"{sum(check.status == status for check in checks)} {status}" for status in ("ok", "warning", "no")]
    return (*lines, Text(", ".join(counted)))

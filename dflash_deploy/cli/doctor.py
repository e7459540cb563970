"""`doctor`: what would keep this machine from serving."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, note_if_new
from dflash_deploy.cli.shown import Report, Styled

if TYPE_CHECKING:
    from dflash_deploy.doctor.check import Check

_STYLES = {"ok": "green", "warning": "yellow", "no": "bold red", "skipped": "dim"}


@command(examples=("doctor", "doctor --report"))
def doctor(
    probe: Annotated[
        bool, typer.Option("--probe", help="Also start a container with the GPUs, if an image is here.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Print Markdown to paste into an issue, without API keys and tokens.")
    ] = False,
    *,
    directory: Path,
) -> Report:
    """Find what would keep the deployment from starting. Each finding comes with a fix.

    Without a deployment in the directory, the one that would be planned for this machine is examined.
    """
    from dflash_deploy.operations.doctor import doctor as run_doctor

    if report:
        from dflash_deploy.operations.bundle import issue_report

        written = issue_report(directory)
        return Report(written, (written.text,))
    done = run_doctor(directory, probe=probe)
    note_if_new(directory)
    return Report(done, _shown(done.checks), failure=done.failure)


def _shown(checks: tuple[Check, ...]) -> tuple[Styled, ...]:
    """One line for each check, and one below it with the fix if it needs one."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(Styled((f"{check.status:8}", _STYLES[check.status]), (f"{check.name:{width}}  {check.saw}", "")))
        if check.fix and check.status != "ok":
            lines.append(Styled((f"{'':8}{'':{width}}  {check.fix}", "dim")))
    counted = [f"{sum(check.status == status for check in checks)} {status}" for status in ("ok", "warning", "no")]
    return (*lines, Styled((", ".join(counted), "")))

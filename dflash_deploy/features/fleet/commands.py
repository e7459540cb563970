"""`fleet`: the same command on each host of a file, side by side, and one table of what it did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, examples, terminal
from dflash_deploy.cli.shown import Grid, Report, visible
from dflash_deploy.features.fleet import SUMMARY

if TYPE_CHECKING:
    from dflash_deploy.features.fleet.operations import FleetResult, Show

fleet = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help=SUMMARY, epilog=examples("fleet init", "fleet up")
)
FILE = Path("fleet.yaml")
File = Annotated[Path, typer.Option("--file", help="YAML file with the hosts.", dir_okay=False)]


@fleet.command("init")
@command(changes=True, examples=("fleet init", "fleet init -- --model qwen3.5-27b --port 8001"))
def fleet_init(
    options: Annotated[list[str] | None, typer.Argument(help="After --: further options of `init`.")] = None,
    file: File = FILE,
    force: Annotated[bool, typer.Option("--force", help="Write .env again on each host, with a new key.")] = False,
) -> Report:
    """Run `init` on each host, and give all hosts one new API key, which travels on the input of ssh."""
    from dflash_deploy.features.fleet.operations import init

    return _report(init(file, options or (), force=force, reporter=terminal()))


@fleet.command("up")
@command(changes=True, examples=("fleet up", "fleet up --file lab.yaml"))
def fleet_up(file: File = FILE) -> Report:
    """Run `up` on each host; for one engine over all hosts, `pull` first."""
    return _on_each(file, "up")


@fleet.command("status")
@command(examples=("fleet status", "fleet status --json"))
def fleet_status(file: File = FILE) -> Report:
    """Run `status` on each host: does its engine really answer?"""
    return _on_each(file, "status")


@fleet.command("logs")
@command(examples=("fleet logs", "fleet logs --tail 50"), json=False)
def fleet_logs(
    file: File = FILE,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines of each.")] = None,
) -> Report:
    """Print the engines' logs, each line with the name of its host. Secrets are redacted on the hosts."""

    def show(name: str, line: str) -> None:
        typer.echo(visible(f"{name} | {line}"))

    last = () if tail is None else ("--tail", str(tail))
    return Report(failure=_on_each(file, "logs", *last, show=show).failure)


@fleet.command("test")
@command(examples=("fleet test", "fleet test --json"))
def fleet_test(file: File = FILE) -> Report:
    """Run the checks of `test` on each host that answers requests."""
    return _on_each(file, "test")


@fleet.command("down")
@command(changes=True, examples=("fleet down", "fleet down --json"))
def fleet_down(file: File = FILE) -> Report:
    """Run `down` on each host; weights and settings stay."""
    return _on_each(file, "down")


def _on_each(file: Path, *words: str, show: Show | None = None) -> Report:
    from dflash_deploy.features.fleet.operations import on_each

    return _report(on_each(file, *words, reporter=terminal(), show=show))


def _report(done: FleetResult) -> Report:
    drawn = Grid("host", "state", "seconds", "endpoint", "remark")
    for one in done.hosts:
        drawn.add_row(one.name, one.state, f"{one.seconds:.1f}", one.endpoint or "-", one.message)
    return Report(done.document(), (drawn,), failure=done.failure)

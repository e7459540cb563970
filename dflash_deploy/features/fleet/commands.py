"""`fleet`: several machines from one terminal, over the system's SSH client.

Most commands show the hosts as a table: what the command did on each.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, examples, terminal
from dflash_deploy.cli.options import (
    HERE,
    Directory,
    Json,
    JsonStream,
    Patience,
)
from dflash_deploy.cli.shown import Grid, Report, visible
from dflash_deploy.cli.streams import lost_output
from dflash_deploy.startup import PATIENCE

if TYPE_CHECKING:
    from dflash_deploy.features.fleet.settings import FleetResult


def table(done: FleetResult) -> Grid:
    """One row for each host."""
    drawn = Grid("host", "state", "seconds", "endpoint", "remark")
    for one in done.hosts:
        checks = f"{one.checks_passed} checks passed" if one.checks_passed else ""
        wrong = f"failed: {', '.join(one.checks_failed)}" if one.checks_failed else ""
        unrouted = "the router sends it no requests" if one.routed is False else ""
        said = one.error.message if one.error else "; ".join(filter(None, (checks, wrong, one.cause, unrouted)))
        drawn.add_row(one.name, one.state, f"{one.seconds:.1f}", one.endpoint or "-", said)
    return drawn


Hosts = Annotated[
    list[str] | None, typer.Option("--host", help="Only this host of fleet.yaml; may be repeated.", show_default=False)
]

fleet = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Several machines over SSH: init, up, status, test, logs, down.",
    epilog=examples("fleet init nvidia@spark-a nvidia@spark-b", "fleet up"),
)


@command(
    changes=True,
    examples=("fleet init nvidia@spark-a nvidia@spark-b", "fleet init a=nvidia@192.168.1.10 b=nvidia@192.168.1.11"),
)
def fleet_init(
    hosts: Annotated[
        list[str] | None, typer.Argument(help="Each [NAME=][USER@]ADDRESS; without hosts fleet.yaml is checked.")
    ] = None,
    directory: Directory = HERE,
    force: Annotated[bool, typer.Option("--force", help="Replace fleet.yaml.")] = False,
    as_json: Json = False,
) -> Report:
    """Write fleet.yaml for hosts that SSH reaches without a password, and check them."""
    from dflash_deploy.features.fleet.operations import fleet_init as run_fleet_init

    done = run_fleet_init(directory, tuple(hosts or ()), force=force, reporter=terminal())
    shown = (
        f"{'wrote' if done.written else 'read':8} {done.file}",
        f"shape    {done.shape}: {done.reason}",
        table(done),
        "next     dflash-deploy fleet up   install, configure and start the hosts",
    )
    return Report(done.document(), shown, failure=done.failure)


@command(changes=True, examples=("fleet up", "fleet up --host spark-b"))
def fleet_up(
    directory: Directory = HERE,
    hosts: Hosts = None,
    patience: Patience = PATIENCE,
    as_json: Json = False,
) -> Report:
    """Prepare the hosts, carry settings to them, start their engines, and wait until each has answered."""
    from dflash_deploy.features.fleet.up import fleet_up as run_fleet_up

    done = run_fleet_up(directory, tuple(hosts or ()), patience=patience, reporter=terminal())
    return _report(done, ("next     dflash-deploy fleet test   check answers, limits and drafts on each host",))


@command(examples=("fleet status", "fleet status --json"))
def fleet_status(directory: Directory = HERE, hosts: Hosts = None, as_json: Json = False) -> Report:
    """Report whether the engine of each host really answers."""
    from dflash_deploy.features.fleet.operations import fleet_status as run_fleet_status

    return _report(run_fleet_status(directory, tuple(hosts or ()), reporter=terminal()))


@command(examples=("fleet test", "fleet test --host spark-a"))
def fleet_test(directory: Directory = HERE, hosts: Hosts = None, as_json: Json = False) -> Report:
    """Run the checks of `test` on each host that answers requests."""
    from dflash_deploy.features.fleet.operations import fleet_test as run_fleet_test

    return _report(run_fleet_test(directory, tuple(hosts or ()), reporter=terminal()))


@command(examples=("fleet logs --tail 50", "fleet logs --host spark-b"))
def fleet_logs(
    directory: Directory = HERE,
    hosts: Hosts = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines of each.")] = None,
) -> Report:
    """Print the engines' logs, each line with the name of its host. Secrets are redacted."""
    from dflash_deploy.features.fleet.operations import fleet_logs as run_fleet_logs

    for name, line in run_fleet_logs(directory, tuple(hosts or ()), tail=tail, reporter=terminal()):
        typer.echo(visible(f"{name} | {line}"))
        if lost_output() is not None:
            break
    return Report()


@command(changes=True, examples=("fleet down", "fleet down --json"))
def fleet_down(directory: Directory = HERE, hosts: Hosts = None, as_json: Json = False) -> Report:
    """Stop the engine of each host; weights and settings stay."""
    from dflash_deploy.features.fleet.operations import fleet_down as run_fleet_down

    return _report(run_fleet_down(directory, tuple(hosts or ()), reporter=terminal()))


@command(changes=True, examples=("fleet restart", "fleet restart --host spark-b"))
def fleet_restart(
    directory: Directory = HERE,
    hosts: Hosts = None,
    patience: Patience = PATIENCE,
    as_json: Json = False,
) -> Report:
    """Stop and start the engines, one host after the other; a failure ends it."""
    from dflash_deploy.features.fleet.up import fleet_restart as run_fleet_restart

    return _report(run_fleet_restart(directory, tuple(hosts or ()), patience=patience, reporter=terminal()))


@command(examples=("fleet facts", "fleet facts --json"))
def fleet_facts(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Also the state of the engine of this deployment.", file_okay=False)
    ] = None,
    peers: Annotated[
        list[str] | None, typer.Option("--peer", help="Also whether this address answers; may be repeated.")
    ] = None,
    source: Annotated[str, typer.Option(help="The address of this machine from which peers are asked.")] = "0.0.0.0",  # noqa: S104 - any
    as_json: Json = False,
) -> Report:
    """Print what a fleet needs to know of this machine; `fleet up` calls it on each host."""
    from dflash_deploy.features.fleet.host import fleet_facts as run_fleet_facts

    found = run_fleet_facts(directory, peers=tuple(peers or ()), source=source)
    document = found.document()
    return Report(document, tuple(f"{name:13} {value}" for name, value in document.items()))


@command(changes=True, examples=("fleet fetch", "fleet fetch --json-stream"))
def fleet_fetch(directory: Directory = HERE, json_stream: JsonStream = False, as_json: Json = False) -> Report:
    """Download missing weights as `up` does, and start nothing; `fleet up` calls it on each host of one engine."""
    from dflash_deploy.features.fleet.host import fleet_fetch as run_fleet_fetch

    done = run_fleet_fetch(directory, reporter=terminal(json_stream=json_stream))
    return Report(done.document(), (f"weights  {done.state}",))


@command(changes=True, examples=("fleet route", "fleet route --without 10.0.0.2:8000"))
def fleet_route(
    directory: Directory = HERE,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", help="Send no requests to this HOST:PORT, and wait for its own; may be repeated."),
    ] = None,
    json_stream: JsonStream = False,
    as_json: Json = False,
) -> Report:
    """Send requests to each engine of ROUTER_ENGINES that answers; the commands of a fleet call it on a host."""
    from dflash_deploy.features.fleet.host import fleet_route as run_fleet_route

    reporter = terminal(json_stream=json_stream)
    done = run_fleet_route(directory, without=tuple(without or ()), reporter=reporter)
    left_out = (f"left out {address}: {why}" for address, why in done.left_out.items())
    return Report(done.document(), (f"routed   {', '.join(done.engines) or 'no engine of another machine'}", *left_out))


def _report(done: FleetResult, after: tuple[str, ...] = ()) -> Report:
    shape = f"shape    {done.shape}: {done.reason}"
    router = (f"router   {done.router}: clients use the endpoint of this host",) if done.router else ()
    shown = (shape, *router, table(done), *(() if done.failure else after))
    return Report(done.document(), shown, failure=done.failure)


fleet.command("init")(fleet_init)
fleet.command("up")(fleet_up)
fleet.command("status")(fleet_status)
fleet.command("test")(fleet_test)
fleet.command("logs")(fleet_logs)
fleet.command("down")(fleet_down)
fleet.command("restart")(fleet_restart)
# only another dflash-deploy calls these, over SSH
fleet.command("facts", hidden=True)(fleet_facts)
fleet.command("fetch", hidden=True)(fleet_fetch)
fleet.command("route", hidden=True)(fleet_route)

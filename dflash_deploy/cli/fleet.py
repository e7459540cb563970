"""`fleet`: several machines from one terminal, over the system's SSH client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy import operations
from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.fleet_keys import keys
from dflash_deploy.cli.fleet_table import table
from dflash_deploy.cli.held import input_ended, read_all, read_token
from dflash_deploy.cli.numbers import GB
from dflash_deploy.cli.options import HERE, Directory, Json, JsonStream, Patience
from dflash_deploy.cli.shown import Report
from dflash_deploy.cli.streams import lost_output
from dflash_deploy.cli.visible import visible
from dflash_deploy.operations.patience import PATIENCE

if TYPE_CHECKING:
    from dflash_deploy.operations import FleetResult

Hosts = Annotated[
    list[str] | None, typer.Option("--host", help="Only this host of fleet.yaml; may be repeated.", show_default=False)
]

fleet = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Several machines over SSH: init, up, status, test, keys, down.",
)


@command
def fleet_init(
    hosts: Annotated[
        list[str] | None, typer.Argument(help="Each [NAME=][USER@]ADDRESS; without hosts fleet.yaml is checked.")
    ] = None,
    directory: Directory = HERE,
    force: Annotated[bool, typer.Option("--force", help="Replace fleet.yaml.")] = False,
    as_json: Json = False,
) -> Report:
    """Write fleet.yaml for hosts that SSH reaches without a password, and check them."""
    done = operations.fleet_init(directory, tuple(hosts or ()), force=force, reporter=terminal())
    shown = (
        f"{'wrote' if done.written else 'read':8} {done.file}",
        f"shape    {done.result.chosen.shape}: {done.result.chosen.reason}",
        table(done.result),
        "next     dflash-deploy fleet up   install, configure and start the hosts",
    )
    return Report(done.document(), shown, failure=done.result.failure)


@command
def fleet_up(
    directory: Directory = HERE,
    hosts: Hosts = None,
    patience: Patience = PATIENCE,
    as_json: Json = False,
) -> Report:
    """Prepare the hosts, carry settings to them, start their engines, and wait until each has answered."""
    done = operations.fleet_up(directory, tuple(hosts or ()), patience=patience, reporter=terminal())
    return _report(done, ("next     dflash-deploy fleet test   check answers, limits and drafts on each host",))


@command
def fleet_status(directory: Directory = HERE, hosts: Hosts = None, as_json: Json = False) -> Report:
    """Report whether the engine of each host really answers."""
    return _report(operations.fleet_status(directory, tuple(hosts or ()), reporter=terminal()))


@command
def fleet_test(directory: Directory = HERE, hosts: Hosts = None, as_json: Json = False) -> Report:
    """Run the checks of `test` on each host that answers requests."""
    return _report(operations.fleet_test(directory, tuple(hosts or ()), reporter=terminal()))


@command
def fleet_logs(
    directory: Directory = HERE,
    hosts: Hosts = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines of each.")] = None,
) -> Report:
    """Print the engines' logs, each line with the name of its host. Secrets are redacted."""
    for name, line in operations.fleet_logs(directory, tuple(hosts or ()), tail=tail, reporter=terminal()):
        typer.echo(visible(f"{name} | {line}"))
        if lost_output() is not None:
            break
    return Report()


@command
def fleet_down(directory: Directory = HERE, hosts: Hosts = None, as_json: Json = False) -> Report:
    """Stop the engine of each host; weights and settings stay."""
    return _report(operations.fleet_down(directory, tuple(hosts or ()), reporter=terminal()))


@command
def fleet_restart(
    directory: Directory = HERE,
    hosts: Hosts = None,
    patience: Patience = PATIENCE,
    as_json: Json = False,
) -> Report:
    """Stop and start the engines, one host after the other; a failure ends it."""
    return _report(operations.fleet_restart(directory, tuple(hosts or ()), patience=patience, reporter=terminal()))


@command
def fleet_watch(
    directory: Directory = HERE,
    patience: Patience = PATIENCE,
    looks: Annotated[
        int | None,
        typer.Option("--looks", min=1, help="End after this many looks; else with Ctrl-C.", show_default=False),
    ] = None,
) -> Report:
    """Check the ranks of one engine every 10 s, and restart all of them if one is lost."""
    operations.fleet_watch(directory, patience=patience, looks=looks, reporter=terminal())
    return Report()


@command
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
    found = operations.fleet_facts(directory, peers=tuple(peers or ()), source=source)
    document = found.document()
    return Report(document, tuple(f"{name:13} {value}" for name, value in document.items()))


@command
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
    reporter = terminal(json_stream=json_stream)
    done = operations.fleet_route(directory, without=tuple(without or ()), reporter=reporter)
    left_out = (f"left out {address}: {why}" for address, why in done.left_out.items())
    return Report(done.document(), (f"routed   {', '.join(done.engines) or 'no engine of another machine'}", *left_out))


@command
def fleet_accept(directory: Directory = HERE, json_stream: JsonStream = False, as_json: Json = False) -> Report:
    """Accept the keys on standard input beside those of .env; the commands of a fleet call it on a host."""
    done = operations.fleet_accept(directory, read_all(), reporter=terminal(json_stream=json_stream))
    said = (f"answered {name}: {status or 'no answer'}" for name, status in done.answers)
    return Report(done.document(), (f"engine   {'runs' if done.running else 'does not run'}", *said))


@command
def fleet_weights(
    directory: Directory = HERE,
    probe: Annotated[
        float, typer.Option("--probe", min=0.0, max=60.0, help="Download for this many seconds to measure the Hub.")
    ] = 0.0,
    as_json: Json = False,
) -> Report:
    """Print what this machine lacks of its weights; `fleet up` calls it on each host."""
    found = operations.fleet_weights(directory, probe=probe)
    rate = f", {found.rate / 1e6:.0f} MB/s from the Hub" if found.rate else ""
    return Report(found.document(), (f"missing  {found.missing / GB:.2f} of {found.size / GB:.2f} GB{rate}",))


@command
def fleet_take(
    directory: Directory = HERE,
    url: Annotated[
        str, typer.Option("--from", help="URL of `fleet offer` on another host; its token is on standard input.")
    ] = "",
    json_stream: JsonStream = False,
    as_json: Json = False,
) -> Report:
    """Fetch missing weights from another host, or from the Hub as `up` does; `fleet up` calls it on a host."""
    token, stopped = (read_token(), input_ended()) if url else (None, None)
    reporter = terminal(json_stream=json_stream)
    done = operations.fleet_take(directory, url=url, token=token, stopped=stopped, reporter=reporter)
    models = done.document() if done else {"models": []}
    return Report(models, ("all files are present and match dflash.lock",))


@command
def fleet_offer(
    address: Annotated[str, typer.Option(help="The address of this machine on the link between the hosts.")],
    directory: Directory = HERE,
    json_stream: JsonStream = False,
    as_json: Json = False,
) -> Report:
    """Offer the weights of this machine to the other hosts until standard input ends; `fleet up` calls it on a host."""
    token, reporter = read_token(), terminal(json_stream=json_stream)
    url = operations.fleet_offer(directory, address=address, token=token, ended=input_ended(), reporter=reporter)
    return Report({"url": url}, (f"offered  weights at {url}",))


def _report(done: FleetResult, after: tuple[str, ...] = ()) -> Report:
    shape = f"shape    {done.chosen.shape}: {done.chosen.reason}"
    way = done.weights.way if done.weights else None
    weights = (f"weights  {way.way}: {way.reason}",) if way else ()
    router = (f"router   {done.router}: clients use the endpoint of this host",) if done.router else ()
    shown = (shape, *router, *weights, table(done), *(() if done.failure else after))
    return Report(done.document(), shown, failure=done.failure)


fleet.command("init")(fleet_init)
fleet.command("up")(fleet_up)
fleet.command("status")(fleet_status)
fleet.command("test")(fleet_test)
fleet.command("logs")(fleet_logs)
fleet.command("down")(fleet_down)
fleet.command("restart")(fleet_restart)
fleet.command("watch")(fleet_watch)
fleet.command("facts")(fleet_facts)
fleet.command("route")(fleet_route)
fleet.command("accept")(fleet_accept)
fleet.command("weights")(fleet_weights)
fleet.command("take")(fleet_take)
fleet.command("offer")(fleet_offer)
fleet.add_typer(keys, name="keys")

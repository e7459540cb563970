"""`connect`: configurations for clients of the endpoint, ready to paste, the key by reference."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, option_of
from dflash_deploy.cli.options import KeyFile, clients
from dflash_deploy.cli.shown import Grid, Report, visible
from dflash_deploy.errors import BadInput
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.operations.connect import ClientFile, Connections


@command(examples=("connect opencode --url http://box:8000", "connect codex --write"))
def connect(
    client: Annotated[
        str,
        typer.Argument(help="The client; without it, list all known ones.", show_default=False, autocompletion=clients),
    ] = "",
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments for the client of --launch, after `--`.", show_default=False)
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="URL at which the client reaches the endpoint, if it differs; or another endpoint."),
    ] = None,
    key_file: KeyFile = None,
    model: Annotated[str, typer.Option(help="Name of the model at another endpoint; else the first one.")] = "",
    key: Annotated[str, typer.Option(help="Use this named key, and print a note with it to hand over.")] = "",
    write: Annotated[
        bool, typer.Option("--write", help="Merge the configuration into the client's file, after a diff and a prompt.")
    ] = False,
    launch: Annotated[
        bool, typer.Option("--launch", help="Start the client; write its file first, if it reads one.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Never prompt.")] = False,
    *,
    directory: Path,
    as_json: bool,
) -> Report:
    """Print a client's configuration for this endpoint. It takes the key from the variable DFLASH_API_KEY."""
    _check_options(client, url, own=bool(key_file or model), key=key, acts=write or launch)
    if arguments and not launch:
        raise BadInput(f"`{arguments[0]}` is an argument for a client that does not start", hint="add --launch")
    from dflash_deploy.operations.connect import named

    client = named(client)
    found = _found(directory, client, url, key_file, model, key)
    if not client:
        return _listed(found)
    if write or launch:
        return _done(found, client, arguments or [], launch=launch, yes=yes, as_json=as_json)
    if not as_json:
        # nothing else on standard output, so that it can go into a file; the note is the other way past the redaction
        sys.stdout.write(visible(found.handover(client) if key else found.redact(found.configuration(client))))
        _say(found, _notes(found, client))
        if key and found.endpoint.is_local:
            _say(found, _ways_out(option_of(directory)))
    return Report(found.chosen(client))


def _check_options(client: str, url: str | None, *, own: bool, key: str, acts: bool) -> None:
    if own and url is None:
        raise BadInput("--key-file and --model belong to --url", hint="a deployment has both in its .env")
    if own and key:
        raise BadInput("--key is a key of a deployment", hint="--key-file names the key of another endpoint")
    if (key or acts) and not client:
        raise BadInput("--key, --write and --launch need a client", hint="`dflash-deploy connect` lists all clients")


def _found(directory: Path, client: str, url: str | None, key_file: Path | None, model: str, key: str) -> Connections:
    from dflash_deploy.operations.connect import connect as run_connect
    from dflash_deploy.operations.connect import connect_url, has_deployment

    if url is not None and (key_file or model or not has_deployment(directory)):
        return connect_url(url, client, key_file=key_file, model=model)
    return run_connect(directory, client, url=url, key_name=key)


def _done(found: Connections, client: str, arguments: list[str], *, launch: bool, yes: bool, as_json: bool) -> Report:
    """Write the client's file if it has one, and start the client."""
    if launch:
        found.check_launch(client)
    written = backup = None
    if not launch or found.known[client].path:
        file = found.file(client)
        if file.diff and _agreed(file, found, yes=yes, as_json=as_json):
            written, backup = file.path, file.write()
        if not as_json:
            _say(found, _written(file, backup))
    if launch:
        found.launch(client, arguments)
    if not as_json:
        _say(found, _notes(found, client))
    return Report(found.chosen(client, written, backup))


def _agreed(file: ClientFile, found: Connections, *, yes: bool, as_json: bool) -> bool:
    """Show what changes, and ask. Raises BadInput if the user declines, or without a terminal to ask on."""
    if not as_json:
        typer.echo(visible(found.redact(file.diff)), err=True, nl=False)
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(f"{file.path} is not written: no terminal to ask on", hint="--yes writes it without a prompt")
    if not typer.confirm(f"Write {file.path}?", err=True):
        raise BadInput(f"{file.path} is not written", hint="without --write the configuration is only printed")
    return True


def _written(file: ClientFile, backup: Path | None) -> Iterator[str]:
    yield f"written    {file.path}" if file.diff else f"unchanged  {file.path} has this configuration"
    if backup is not None:
        yield f"backup     {backup}"


def _listed(found: Connections) -> Report:
    """All clients, and the endpoint that they get."""
    drawn = Grid("client", "what", "where it goes", wraps=("what", "where it goes"))
    for name, one in found.known.items():
        drawn.add_row(name, one.title, one.where)
    ending = (f"endpoint   {found.base_url}, model {found.endpoint.model}", "next       dflash-deploy connect opencode")
    return Report(found.listed(), (drawn, "", *ending))


def _say(found: Connections, lines: Iterator[str]) -> None:
    from dflash_deploy.cli.report import note

    for line in lines:
        note(found.redact(line))


def _ways_out(there: str) -> Iterator[str]:
    """The two ways to publish an endpoint that only this machine reaches."""
    yield "warning    only this machine reaches this address; `dflash-deploy up` applies what publishes it:"
    yield f"next       dflash-deploy set {Settings.dflash_domain}=$(hostname -f){there}   with HTTPS"
    yield f"           dflash-deploy set {Settings.dflash_bind}=0.0.0.0{there}   unencrypted, in a trusted network"


def _notes(found: Connections, client: str) -> Iterator[str]:
    """What a person must know beside the configuration."""
    chosen = found.known[client]
    yield f"goes into  {chosen.where}"
    if not chosen.is_shell:
        yield f"key        {found.export}"
    if found.root is not None:
        from dflash_deploy.operations.connect import TRUST

        yield f"trust      copy {found.root} to the client: {TRUST}"
    if chosen.note:
        yield f"note       {chosen.note}"
    if chosen.tools and not found.reads_tool_calls:
        yield f"note       it needs tool calls, but {Settings.tool_call_parser} is empty: the engine reads none"
    for problem in found.problems(client):
        yield f"problem    {problem}"

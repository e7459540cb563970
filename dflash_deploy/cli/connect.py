"""`connect`: configurations for clients of the endpoint, ready to paste, the key by reference."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command
from dflash_deploy.cli.options import HERE, Directory, Json, KeyFile, clients
from dflash_deploy.cli.shown import Grid, Report, visible
from dflash_deploy.errors import BadInput
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.operations.connect import Connections


@command(examples=("connect", "connect opencode --url http://box:8000"))
def connect(
    client: Annotated[
        str,
        typer.Argument(help="The client; without it, list all known ones.", show_default=False, autocompletion=clients),
    ] = "",
    directory: Directory = HERE,
    url: Annotated[
        str | None,
        typer.Option(help="Where the client reaches the endpoint, if not where it listens; or another endpoint."),
    ] = None,
    key_file: KeyFile = None,
    model: Annotated[str, typer.Option(help="Name of the model at another endpoint; else the first one.")] = "",
    as_json: Json = False,
) -> Report:
    """Print a client's configuration for this endpoint. It takes the key from the variable DFLASH_API_KEY."""
    from dflash_deploy.operations.connect import connect as run_connect
    from dflash_deploy.operations.connect import connect_url, has_deployment

    if (key_file or model) and url is None:
        raise BadInput("--key-file and --model belong to --url", hint="a deployment has both in its .env")
    if url is not None and (key_file or model or not has_deployment(directory)):
        found = connect_url(url, client, key_file=key_file, model=model)
    else:
        found = run_connect(directory, client, url=url)
    if not client:
        return _listed(found)
    if not as_json:
        # nothing else on standard output, so that it can go into a file
        from dflash_deploy.cli.report import note

        redact = found.redact
        sys.stdout.write(visible(redact(found.configuration(client))))
        for line in _notes(found, client):
            note(redact(line))
    return Report(found.chosen(client))


def _listed(found: Connections) -> Report:
    """All clients, and the endpoint that they get."""
    drawn = Grid("client", "what", "where it goes", wraps=("what", "where it goes"))
    for name, one in found.known.items():
        drawn.add_row(name, one.title, one.where)
    ending = (f"endpoint   {found.base_url}, model {found.endpoint.model}", "next       dflash-deploy connect CLIENT")
    return Report(found.listed(), (drawn, "", *ending))


def _notes(found: Connections, client: str) -> Iterator[str]:
    """What a person must know beside the configuration."""
    chosen = found.known[client]
    yield f"goes into  {chosen.where}"
    if not chosen.file.endswith(".sh"):
        yield f"key        {found.export}"
    if found.root is not None:
        yield f"trust      copy {found.root} to the client: SSL_CERT_FILE (Python), NODE_EXTRA_CA_CERTS, curl --cacert"
    if chosen.note:
        yield f"note       {chosen.note}"
    if chosen.tools and not found.reads_tool_calls:
        yield f"note       it needs tool calls, but {Settings.tool_call_parser} is empty: the engine reads none"

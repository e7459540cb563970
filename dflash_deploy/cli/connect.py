"""`connect`: configurations for clients of the endpoint, ready to paste, the key by reference."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.remote import address_of
from dflash_deploy.cli.report import HERE, Directory, Json, Report, note, table, verb
from dflash_deploy.errors import BadInput

if TYPE_CHECKING:
    from dflash_deploy.connect import ClientTemplate, EndpointFacts


@verb
def connect(
    client: Annotated[str, typer.Argument(help="The client; without it, all that are known.", show_default=False)] = "",
    directory: Directory = HERE,
    url: Annotated[str, typer.Option(help="Where the client reaches the endpoint, if not where it listens.")] = "",
    as_json: Json = False,
) -> Report:
    """Print a client's configuration for this endpoint; it takes the key from the variable DFLASH_API_KEY."""
    from dflash_deploy.connect import KEY_VARIABLE, EndpointFacts, clients, configuration
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.startup import endpoint_of

    known = clients()
    if client and client not in known:
        raise BadInput(f"there is no configuration for {client!r}", hint=f"there is one for {', '.join(known)}")
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    context = plan.values.get("MAX_MODEL_LEN")
    with endpoint_of(deployment, plan) as endpoint:
        reached = address_of(url) if url else endpoint.url
        place = EndpointFacts(reached, endpoint.model, int(context) if context else None, str(deployment.directory))
    if not client:
        return _listed(known, place)
    chosen = known[client]
    text = configuration(chosen, place)
    export = f'export {KEY_VARIABLE}="$(dflash-deploy keys show --reveal --dir {shlex.quote(place.directory)})"'
    if not as_json:
        # alone on standard output, so that it can go into a file
        sys.stdout.write(deployment.redact(text))
        for line in _notes(chosen, export, reads_calls=bool(plan.values.get("TOOL_CALL_PARSER"))):
            note(deployment.redact(line))
    data = {"client": client, "where": chosen.where, "note": chosen.note, "configuration": text, "key": export}
    return Report(data | {"endpoint": f"{place.url}/v1", "model": place.model})


def _listed(known: Mapping[str, ClientTemplate], place: EndpointFacts) -> Report:
    """All clients, and what they will be told."""
    drawn = table("CLIENT", "WHAT", "WHERE IT GOES")
    for name, one in known.items():
        drawn.add_row(name, one.title, one.where)
    rows = [{"client": name, "title": one.title, "where": one.where} for name, one in known.items()]
    ending = (f"endpoint   {place.url}/v1, model {place.model}", "next       dflash-deploy connect CLIENT")
    return Report({"endpoint": f"{place.url}/v1", "model": place.model, "clients": rows}, (drawn, "", *ending))


def _notes(client: ClientTemplate, export: str, *, reads_calls: bool) -> Iterator[str]:
    """What a person has to know beside the configuration."""
    yield f"goes into  {client.where}"
    if not client.file.endswith(".sh"):
        yield f"key        {export}"
    if client.note:
        yield f"note       {client.note}"
    if client.tools and not reads_calls:
        yield "note       it works with tool calls, and TOOL_CALL_PARSER is empty: the engine reads none"

"""`connect`: configurations for clients of the endpoint, ready to paste, the key by reference."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, Report, note, table, verb
from dflash_deploy.errors import BadInput


@verb
def connect(
    client: Annotated[str, typer.Argument(help="The client; without it, all that are known.", show_default=False)] = "",
    directory: Directory = HERE,
    url: Annotated[str, typer.Option(help="Where the client reaches the endpoint, if not where it listens.")] = "",
    as_json: Json = False,
) -> Report:
    """Print a client's configuration for this endpoint; it takes the key from the variable DFLASH_API_KEY."""
    from dflash_deploy.boot import endpoint_of
    from dflash_deploy.client.connect import KEY_VARIABLE, Place, clients, configuration
    from dflash_deploy.project import Deployment

    known = clients()
    if client and client not in known:
        raise BadInput(f"there is no configuration for {client!r}", hint=f"there is one for {', '.join(known)}")
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    with endpoint_of(deployment, plan) as endpoint:
        reached, model = _reached(url) or endpoint.url, endpoint.model
    if not client:
        drawn = table("CLIENT", "WHAT", "WHERE IT GOES")
        for name, one in known.items():
            drawn.add_row(name, one.title, one.where)
        rows = [{"client": name, "title": one.title, "where": one.where} for name, one in known.items()]
        data: dict[str, object] = {"endpoint": f"{reached}/v1", "model": model, "clients": rows}
        return Report(
            data, (drawn, "", f"endpoint   {reached}/v1, model {model}", "next       dflash-deploy connect CLIENT")
        )
    chosen = known[client]
    context = plan.values.get("MAX_MODEL_LEN")
    text = configuration(chosen, Place(reached, model, int(context) if context else None, str(deployment.directory)))
    key = f'export {KEY_VARIABLE}="$(dflash-deploy keys show --reveal --dir {shlex.quote(str(deployment.directory))})"'
    if not as_json:
        # alone on standard output, so that it can go into a file
        sys.stdout.write(text)
        note(f"goes into  {chosen.where}")
        if not chosen.file.endswith(".sh"):
            note(f"key        {key}")
        if chosen.note:
            note(f"note       {chosen.note}")
        if chosen.tools and not plan.values.get("TOOL_CALL_PARSER"):
            note("note       it works with tool calls, and TOOL_CALL_PARSER is empty: the engine reads none")
    data = {"client": client, "where": chosen.where, "note": chosen.note, "configuration": text, "key": key}
    return Report(data | {"endpoint": f"{reached}/v1", "model": model})


def _reached(url: str) -> str:
    """An address of one's own without the /v1 at its end. Raises BadInput."""
    if url and not url.startswith(("http://", "https://")):
        raise BadInput(f"{url} is no address", hint="write it as https://models.example.com")
    return url.rstrip("/").removesuffix("/v1")

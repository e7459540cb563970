"""`schema`: the JSON Schema of what a command prints with `--json`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dflash_deploy.cli.command import command
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import BadInput


@command(examples=("schema", "schema keys rotate"), json=False)
def schema(
    document: Annotated[
        list[str] | None,
        typer.Argument(help="A command; or `progress`, a line of --json-stream. Else list all.", show_default=False),
    ] = None,
) -> Report:
    """Print the JSON Schema of what a command prints with --json."""
    # pydantic and the catalog: not for --help
    from dflash_deploy.schemas.generate import schema_of
    from dflash_deploy.schemas.table import NAMES

    if not document:
        return Report(shown=NAMES)
    name = " ".join(" ".join(document).split())
    if name not in NAMES:
        raise BadInput(f"`{name}` is not a document with a schema", hint="`dflash-deploy schema` lists them")
    typer.echo(json.dumps(schema_of(name), indent=2))
    return Report()

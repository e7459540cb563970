"""`fleet keys`: API keys of all hosts of a fleet, changed without a request that is refused meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy import operations
from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.fleet_table import table
from dflash_deploy.cli.key_options import InFlight, KeyName, KeyScope, TokensPerMinute
from dflash_deploy.cli.key_usage import usage_table
from dflash_deploy.cli.options import HERE, Directory, Json, Patience
from dflash_deploy.cli.shown import Report
from dflash_deploy.operations.patience import PATIENCE
from dflash_deploy.serve.api_keys import OWNER
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.operations import FleetKeys

keys = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="API keys of all hosts: add, rotate, revoke, usage; no request fails.",
)


@command
def fleet_keys_add(
    name: KeyName,
    directory: Directory = HERE,
    scope: KeyScope = "infer",
    in_flight: InFlight = None,
    tokens_per_minute: TokensPerMinute = None,
    as_json: Json = False,
) -> Report:
    """Add a key with a name: .env gets it after all hosts accept it."""
    done = operations.fleet_add_key(
        directory, name, scope=scope, in_flight=in_flight, tokens_per_minute=tokens_per_minute, reporter=terminal()
    )
    return _report(done, "added", f"next     dflash-deploy keys show {name} --reveal   the key, for the client")


@command
def fleet_keys_revoke(name: KeyName, directory: Directory = HERE, as_json: Json = False) -> Report:
    """Remove a key from .env and all hosts: their engines reject it at once."""
    return _report(operations.fleet_revoke_key(directory, name, reporter=terminal()), "revoked")


@command
def fleet_keys_rotate(
    name: Annotated[
        str, typer.Argument(help=f"Whose key; without a name {Settings.vllm_api_key}.", show_default=False)
    ] = OWNER,
    directory: Directory = HERE,
    overlap: Annotated[
        float, typer.Option(min=0.0, max=86_400.0, help="Seconds for which the old key stays valid in the end.")
    ] = 10.0,
    patience: Patience = PATIENCE,
    as_json: Json = False,
) -> Report:
    """Replace a key: all hosts accept both until the end. Only for the owner's key engines restart, host by host."""
    done = operations.fleet_rotate_key(directory, name, overlap=overlap, patience=patience, reporter=terminal())
    return _report(done, "replaced", "clients  each that sends the key; dflash-deploy itself reads .env")


@command
def fleet_keys_usage(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Show requests and tokens of each key on all hosts since the engines' start."""
    found = operations.fleet_usage_of_keys(directory, reporter=terminal())
    failure = found.result.failure
    hosts = (table(found.result),) if failure else ()
    return Report(found.document(), (usage_table(found.usage), *hosts), failure=failure)


def _report(done: FleetKeys, verb: str, *after: str) -> Report:
    if done.finished:
        said = f"{verb:8} {done.name}, in {done.deployment.env_file} and on all hosts"
        return Report(done.document(), (said, table(done.result), *after))
    return Report(done.document(), (table(done.result),), failure=done.result.failure)


keys.command("add")(fleet_keys_add)
keys.command("revoke")(fleet_keys_revoke)
keys.command("rotate")(fleet_keys_rotate)
keys.command("usage")(fleet_keys_usage)

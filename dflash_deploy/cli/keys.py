"""`keys show` and `keys rotate`: the API key that clients of the endpoint send."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy import operations
from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import HERE, Directory, Json, JsonStream, Patience
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import BadInput
from dflash_deploy.operations.patience import PATIENCE
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.operations import Replaced

CLIENTS = (
    "clients      each that sends the key: api_key or OPENAI_API_KEY of applications, a proxy that adds it,",
    "             a Prometheus that scrapes with it; dflash-deploy itself reads .env",
)

keys = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The API key of the endpoint: show, rotate.")


@command
def keys_show(
    directory: Directory = HERE,
    reveal: Annotated[
        bool,
        typer.Option("--reveal", help="Print the key and nothing else, as for $(dflash-deploy keys show --reveal)."),
    ] = False,
    as_json: Json = False,
) -> Report:
    """Show where the key is and its fingerprint; the key itself only with --reveal."""
    found = operations.key(directory)
    deployment = found.deployment
    if reveal and as_json:
        raise BadInput("--reveal and --json exclude each other", hint="--reveal prints the key and nothing else")
    if reveal:
        # the one way past the redaction of all that is shown
        sys.stdout.write(f"{deployment.key.reveal()}\n")
        return Report()
    shown = (
        f"key          {Settings.vllm_api_key} in {deployment.env_file}",
        f"readable     {'only by its owner' if found.private else f'BY OTHERS: chmod 600 {deployment.env_file}'}",
        f"fingerprint  {deployment.key.fingerprint}",
        "next         dflash-deploy keys show --reveal   only the key, for $(...)",
        "             dflash-deploy keys rotate          a new key; the old one is rejected",
    )
    return Report(found.document(), shown)


@command
def keys_rotate(
    directory: Directory = HERE,
    patience: Patience = PATIENCE,
    as_json: Json = False,
    json_stream: JsonStream = False,
) -> Report:
    """Write a new key into .env, restart a running engine, and prove that it rejects the old key."""
    done = operations.rotate_key(directory, patience=patience, reporter=terminal(json_stream=json_stream))
    return Report(done.document(), (*_replaced(done.old, done.new), *_restarted(done), *CLIENTS))


def _restarted(done: Replaced) -> tuple[str, ...]:
    rotation = done.rotation
    if rotation is None:
        return ("restarted    nothing: no engine runs; `dflash-deploy up` starts one with the new key",)
    ready = rotation.ready
    return (
        f"restarted    the engine, ready after {ready.seconds:.0f} s at {ready.endpoint}/v1",
        f"proof        old key: {rotation.old_before or 'no answer'} before, {rotation.old_after} now; "
        f"new key: {rotation.new_after}",
    )


def _replaced(old: Deployment, new: Deployment) -> tuple[str, ...]:
    was = f", was {old.key.fingerprint}" if old.key_is_sound else ""
    others = (f"further      the keys of {Settings.dflash_api_keys} stay; a line of .env is theirs",)
    kept = others if new.secrets[Settings.dflash_api_keys.name].reveal() else ()
    names = old.settings_with_the_key
    also = (f"also         in {', '.join(names)}, which had the old key",) if names else ()
    return f"key          a new one in {new.env_file}", f"fingerprint  {new.key.fingerprint}{was}", *also, *kept


keys.command("show")(keys_show)
keys.command("rotate")(keys_rotate)

"""`keys`: the API keys that clients of the endpoint send, and a table of what each key used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, examples, option_of, terminal
from dflash_deploy.cli.options import (
    InFlight,
    KeyName,
    KeyScope,
    Patience,
    TokensPerMinute,
)
from dflash_deploy.cli.shown import Grid, Report
from dflash_deploy.errors import BadInput
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import PATIENCE

if TYPE_CHECKING:
    from dflash_deploy.client.metrics import KeyUsage
    from dflash_deploy.operations.keys import Replaced


def usage_table(usage: Sequence[KeyUsage]) -> Grid:
    """One row for each key."""
    drawn = Grid("name", "requests", "refused", "cancelled", "tokens read", "generated", "in flight")
    for used in usage:
        refused = sum(count for status, count in used.requests.items() if status[:1] in {"4", "5"})
        counts = (
            sum(used.requests.values()),
            refused,
            used.requests.get("cancelled", 0),
            used.prompt_tokens,
            used.generation_tokens,
            used.in_flight,
        )
        drawn.add_row(used.name, *map(str, counts))
    return drawn


OPENS = {"all": "every route", "infer": "generation", "metrics": "only GET /metrics"}  # what a key opens, by its scope

CLIENTS = (
    "clients      each that sends the key: api_key or OPENAI_API_KEY of applications, a proxy that adds it,",
    "             a Prometheus that scrapes with it; dflash-deploy itself reads .env",
)

keys = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="API keys of the endpoint: show, rotate, add, revoke, list, usage.",
    epilog=examples("keys show", "keys add alice"),
)


@command(examples=("keys show", "keys show alice --reveal"))
def keys_show(
    name: Annotated[
        str | None, typer.Argument(help="Name of a further key; else the first one.", show_default=False)
    ] = None,
    reveal: Annotated[
        bool,
        typer.Option("--reveal", help="Print the key and nothing else, as for $(dflash-deploy keys show --reveal)."),
    ] = False,
    *,
    directory: Path,
    as_json: bool,
) -> Report:
    """Show where the key is and its fingerprint; the key itself only with --reveal."""
    from dflash_deploy.operations.key_file import key

    found = key(directory, name)
    deployment = found.deployment
    if reveal and as_json:
        raise BadInput("--reveal and --json exclude each other", hint="--reveal prints the key and nothing else")
    if reveal:
        # the one way past the redaction of all that is shown
        sys.stdout.write(f"{found.key.reveal()}\n")
        return Report()
    place = f"{Settings.dflash_api_keys}, {name}," if name else f"{Settings.vllm_api_key}"
    shown = (
        f"key          {place} in {found.file}",
        f"readable     {'only by its owner' if found.private else f'BY OTHERS: chmod 600 {found.file}'}",
        f"fingerprint  {found.fingerprint}",
        *_next(name, deployment.option),
    )
    return Report(found, shown)


@command(changes=True, examples=("keys add alice", "keys add batch --in-flight 4 --tokens-per-minute 60000"))
def keys_add(
    name: KeyName,
    scope: KeyScope = "infer",
    in_flight: InFlight = None,
    tokens_per_minute: TokensPerMinute = None,
    *,
    directory: Path,
) -> Report:
    """Add a key with a name, for one client. A running engine accepts it at once."""
    from dflash_deploy.operations.keys import add_key

    done = add_key(directory, name, scope=scope, in_flight=in_flight, tokens_per_minute=tokens_per_minute)
    there = done.deployment.option
    now = "accepts it now" if done.status else f"gets it with `dflash-deploy up{there}`"
    hand = f"keys show {name} --reveal{there}   the key, for the client"
    if scope != "metrics":
        hand = f"connect opencode --key {name}{there}   a note for the client, with the key"
    limits = {"in flight": done.in_flight, "tokens per minute": done.tokens_per_minute}
    opens = ", ".join([OPENS[done.scope], *(f"at most {most} {what}" for what, most in limits.items() if most)])
    shown = (
        f"added        {name}, {opens}, in {done.file}",
        f"engine       {now}",
        f"next         dflash-deploy {hand}",
    )
    return Report(done, shown)


@command(changes=True, examples=("keys revoke alice", "keys revoke alice --json"))
def keys_revoke(name: KeyName, *, directory: Path) -> Report:
    """Remove a key. A running engine rejects it at once; requests that it began continue."""
    from dflash_deploy.operations.keys import revoke_key

    done = revoke_key(directory, name)
    now = f"answers it {done.status} now" if done.status else "does not run"
    return Report(done, (f"revoked      {name}, in {done.file}", f"engine       {now}"))


@command(examples=("keys list", "keys list --json"))
def keys_list(*, directory: Path) -> Report:
    """List the further keys with their scopes and limits."""
    from dflash_deploy.operations.keys import list_keys

    found = list_keys(directory)
    if not found.keys:
        add = f"dflash-deploy keys add alice{option_of(directory)}"
        return Report(found, ("no further keys", f"next         {add}"))
    drawn = Grid("name", "opens", "in flight", "tokens/min", "fingerprint")
    for key in found.keys:
        limits = (str(limit) if limit else "-" for limit in (key.in_flight, key.tokens_per_minute))
        drawn.add_row(key.name, OPENS[key.scope], *limits, key.fingerprint)
    return Report(found, (drawn,))


@command(examples=("keys usage", "keys usage --json"))
def keys_usage(*, directory: Path) -> Report:
    """Show requests and tokens of each key since the engine's start."""
    from dflash_deploy.operations.keys import usage_of_keys

    found = usage_of_keys(directory)
    return Report(found, (usage_table(found.keys),))


def _next(name: str | None, there: str) -> tuple[str, ...]:
    if name:
        return (
            f"next         dflash-deploy keys show {name} --reveal{there}   only the key, for $(...)",
            f"             dflash-deploy keys revoke {name}{there}          it is rejected at once",
        )
    return (
        f"next         dflash-deploy keys show --reveal{there}   only the key, for $(...)",
        f"             dflash-deploy keys rotate{there}          a new key; the old one is rejected",
    )


@command(changes=True, examples=("keys rotate", "keys rotate --json-stream"))
def keys_rotate(patience: Patience = PATIENCE, *, directory: Path, json_stream: bool) -> Report:
    """Write a new key into .env, restart a running engine, and prove that it rejects the old key."""
    from dflash_deploy.operations.keys import rotate_key

    done = rotate_key(directory, patience=patience, reporter=terminal(json_stream=json_stream))
    return Report(done, (*_replaced(done), *_restarted(done), *CLIENTS))


def _restarted(done: Replaced) -> tuple[str, ...]:
    if done.proof is None:
        start = f"`dflash-deploy up{done.new.option}`"
        return (f"restarted    nothing: no engine runs here; {start} starts one with the new key",)
    old, new = done.proof.old_key, done.proof.new_key
    return (
        f"restarted    the engine, ready after {done.seconds:.0f} s at {done.endpoint}",
        f"proof        old key: {old.before or 'no answer'} before, {old.after} now; new key: {new.after}",
    )


def _replaced(done: Replaced) -> tuple[str, ...]:
    was = f", was {done.old_fingerprint}" if done.old_fingerprint else ""
    others = (f"further      the keys of {Settings.dflash_api_keys} stay; a line of .env is theirs",)
    kept = others if done.new.secrets[Settings.dflash_api_keys.name].reveal() else ()
    also = (f"also         in {', '.join(done.also_in)}, which had the old key",) if done.also_in else ()
    return f"key          a new one in {done.file}", f"fingerprint  {done.fingerprint}{was}", *also, *kept


keys.command("show")(keys_show)
keys.command("rotate")(keys_rotate)
keys.command("add")(keys_add)
keys.command("revoke")(keys_revoke)
keys.command("list")(keys_list)
keys.command("usage")(keys_usage)

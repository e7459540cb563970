"""`keys show` and `keys rotate`: the key that clients of the endpoint send."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import Patience, plan_of, plan_to_stop
from dflash_deploy.cli.report import HERE, Directory, Json, JsonStream, Report, note, verb

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.startup import Rotation

CLIENTS = (
    "clients      each that sends the key: api_key or OPENAI_API_KEY of applications, a proxy that adds it,",
    "             a Prometheus that scrapes with it; dflash-deploy itself reads .env",
)

keys = typer.Typer(help="The key of the endpoint: show, rotate.", no_args_is_help=True)


@verb
def keys_show(
    directory: Directory = HERE,
    reveal: Annotated[
        bool,
        typer.Option("--reveal", help="Print the key and nothing else, as for $(dflash-deploy keys show --reveal)."),
    ] = False,
    as_json: Json = False,
) -> Report:
    """Say where the key stands and what its fingerprint is; the key itself only with --reveal."""
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.errors import BadInput, SettingsRefused

    deployment = Deployment.existing(directory, check=False)
    if not deployment.key_is_sound:
        raise SettingsRefused(
            ".env: VLLM_API_KEY is empty, too short, or has characters that files quote",
            hint="make one: dflash-deploy keys rotate",
        )
    if reveal and as_json:
        raise BadInput("no JSON document holds the key", hint="leave out --json: --reveal prints the key alone")
    if reveal:
        # the one way past the redaction of all that is shown
        sys.stdout.write(f"{deployment.key.reveal()}\n")
        return Report()
    private = deployment.is_private()
    data = {"file": str(deployment.env_file), "private": private, "fingerprint": deployment.key.fingerprint}
    shown = (
        f"key          VLLM_API_KEY in {deployment.env_file}",
        f"readable     {'by its owner alone' if private else f'BY OTHERS: chmod 600 {deployment.env_file}'}",
        f"fingerprint  {deployment.key.fingerprint}",
        "next         dflash-deploy keys show --reveal   the key alone, for $(...)",
        "             dflash-deploy keys rotate          a new one; the old one is dead",
    )
    return Report(data, shown)


@verb
def keys_rotate(
    directory: Directory = HERE,
    patience: Patience = 900,
    as_json: Json = False,
    json_stream: JsonStream = False,
) -> Report:
    """Write a new key into .env, restart an engine that runs, and prove that the old key is dead."""
    from dflash_deploy.deployment import Deployment, hold
    from dflash_deploy.runtime import runtime_for
    from dflash_deploy.startup import is_up

    with hold(Deployment.existing(directory, check=False), "keys rotate"):
        # read under the lock: a rotation that ended just now has changed it
        old = Deployment.existing(directory, check=False)
        if is_up(runtime_for(old, plan_to_stop(old))):
            return _restarted(old, patience, json_stream=json_stream)
        new = old.with_new_key()
    shown = (
        *_replaced(old, new),
        "restarted    nothing: no engine runs; `dflash-deploy up` starts one with the new key",
        *CLIENTS,
    )
    return Report(_fingerprints(old, new) | {"restarted": False, "proof": None}, shown)


def _restarted(old: Deployment, patience: float, *, json_stream: bool) -> Report:
    """The key of a deployment that runs is replaced, and its engine started anew."""
    from dflash_deploy.cli.display import boot_display
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.redact import Redactor
    from dflash_deploy.runtime import runtime_for
    from dflash_deploy.startup import rotate_running

    old = Deployment.existing(old.directory)
    plan = plan_of(old)
    what = "container is made anew" if plan.runtime == "compose" else "process is stopped and started"
    note(f"the engine's {what}, with .env as it is now; answers under way are cut off")
    if plan.settings.several_machines:
        note("the engines on the other machines lose this one: start them anew too")
    known = [*old.secrets.values()]

    def redact(text: str) -> str:
        # .env changes on the way, and neither key is to be shown
        return Redactor([*known, *Deployment(old.directory).secrets.values()])(text)

    with boot_display(redact, json_stream=json_stream) as show:
        rotation = rotate_running(old, plan, lambda of: runtime_for(of, plan), patience=patience, show=show)
    ready = rotation.ready
    data = _fingerprints(old, rotation.deployment) | {
        "restarted": True,
        "proof": _proof(rotation),
        "endpoint": f"{ready.endpoint}/v1",
        "model": ready.model,
        "runtime": ready.runtime,
        "state": "ready",
        "seconds": round(ready.seconds, 1),
    }
    shown = (
        *_replaced(old, rotation.deployment),
        f"restarted    the engine, ready after {ready.seconds:.0f} s at {ready.endpoint}/v1",
        f"proof        old key: {rotation.old_before or 'no answer'} before, {rotation.old_after} now; "
        f"new key: {rotation.new_after}",
        *CLIENTS,
    )
    return Report(data, shown)


def _proof(rotation: Rotation) -> dict[str, dict[str, int | None]]:
    return {
        "old_key": {"before": rotation.old_before, "after": rotation.old_after},
        "new_key": {"after": rotation.new_after},
    }


def _fingerprints(old: Deployment, new: Deployment) -> dict[str, object]:
    """Of both keys; none of an old one that is not sound, since something short could be guessed back from it."""
    return {
        "file": str(new.env_file),
        "fingerprint": new.key.fingerprint,
        "old_fingerprint": old.key.fingerprint if old.key_is_sound else None,
    }


def _replaced(old: Deployment, new: Deployment) -> tuple[str, ...]:
    was = f", was {old.key.fingerprint}" if old.key_is_sound else ""
    others = ("further      the keys of DFLASH_API_KEYS stay; a line of .env is theirs",)
    kept = others if new.secrets["DFLASH_API_KEYS"].reveal() else ()
    return f"key          a new one in {new.env_file}", f"fingerprint  {new.key.fingerprint}{was}", *kept


keys.command("show")(keys_show)
keys.command("rotate")(keys_rotate)

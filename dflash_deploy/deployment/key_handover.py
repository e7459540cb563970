"""`.dflash/key-handover.json`: the key that a fleet adds, replaces or revokes, until all hosts have done it.

It holds digests: the keys themselves are in `.env` only. A new key that never reached `.env` is forgotten.
"""

from __future__ import annotations

from hmac import compare_digest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_if_changed
from dflash_deploy.intake.documents import KeyHandover
from dflash_deploy.intake.state import read_state, remove_state
from dflash_deploy.serve.api_keys import OWNER, ApiKey
from dflash_deploy.serve.gateway.keyring import Accepted, accepted

NAME = "key-handover.json"


def digest_of(key: ApiKey) -> str:
    """The SHA-256 of a key, in hexadecimal digits."""
    return accepted(key).digest.hex()


def key_named(deployment: Deployment, name: str) -> ApiKey | None:
    """The key of `.env` with this name, that of the owner too; `None` if there is none."""
    owner = ApiKey(OWNER, deployment.key.reveal())
    return next((key for key in (owner, *deployment.further_keys) if key.name == name), None)


def write_handover(deployment: Deployment, handover: KeyHandover) -> None:
    """Remember what is changed, before a host hears of it."""
    write_if_changed(deployment.make_state() / NAME, f"{handover.model_dump_json()}\n", mode=PRIVATE)


def unfinished_handover(deployment: Deployment) -> KeyHandover | None:
    """The change that `.env` has, and maybe not all hosts; `None` if there is none.

    A new key that is not in `.env` is one that no client can have: that change begins again.
    """
    found = read_state(deployment.state / NAME, KeyHandover)
    if found is None:
        return None
    key = key_named(deployment, found.name)
    if found.coming is None:
        return found if key is None else None
    return found if key is not None and compare_digest(digest_of(key), found.coming) else None


def begun_handover(deployment: Deployment) -> bool:
    """Whether hosts may accept a key that `.env` has no more or not yet."""
    return (deployment.state / NAME).exists()


def keys_of_handover(deployment: Deployment, handover: KeyHandover | None) -> tuple[Accepted, ...]:
    """The new and the old key of a change that `.env` has: hosts accept both until it is finished."""
    key = key_named(deployment, handover.name) if handover is not None else None
    if handover is None or key is None:
        return ()
    new = accepted(key)
    if handover.going is None:
        return (new,)
    return new, Accepted(new.name, bytes.fromhex(handover.going), new.scope, new.in_flight, new.tokens_per_minute)


def forget_handover(deployment: Deployment) -> None:
    """All hosts have the change."""
    remove_state(deployment.state / NAME)

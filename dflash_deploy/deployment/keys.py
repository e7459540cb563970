"""Digests of API keys: of the further keys, for a running gateway, and of a key that a fleet changes.

The keys themselves are in `.env` only. `.dflash/keys/` has the digests of the further keys; a running gateway reads
them again when they change. It is a directory of its own, because a container that mounts a single file keeps seeing
the replaced one. `.dflash/key-handover.json` has the key that a fleet adds, replaces or revokes, until all hosts have
done it. A new key that never reached `.env` is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_if_changed
from dflash_deploy.deployment.front import retired_key, router_keys, write_owned
from dflash_deploy.intake.documents import KeyHandover, read_state, remove_state
from dflash_deploy.redact import Secret
from dflash_deploy.serve.api_keys import OWNER, ApiKey
from dflash_deploy.serve.gateway.keys import Accepted, accepted, document_of, read_accepted
from dflash_deploy.serve.router.files import PROBE_NAME

KEYS_FILE = "keys.json"
REPLACING = "replacing.json"
"""The file beside it with the digests of keys that a fleet is replacing, which `.env` has no more or not yet."""


def keys_file(deployment: Deployment) -> Path:
    """The file that the gateway reads."""
    return deployment.state / "keys" / KEYS_FILE


def limits_directory(deployment: Deployment) -> Path:
    """The directory in which native gateways count requests of keys with limits together; they make it."""
    return deployment.state / "limits"


def write_keys(deployment: Deployment, *, coming: Secret | None = None) -> bool:
    """Write the keys of DFLASH_API_KEYS for the gateway; return whether they changed.

    The file belongs to the owner of `.env`, as whom the container runs. `coming` is the owner's next key, which
    several engines accept already. Raises SettingsRefused for an invalid entry.
    """
    known = (*deployment.further_keys, *_of_several_engines(deployment, coming))
    text = document_of(known, retired_key(deployment), replaced_keys(deployment))
    return write_owned(deployment, keys_file(deployment), text)


def accept_also(deployment: Deployment, keys: Sequence[Accepted]) -> None:
    """Let the engines accept these keys beside those of `.env`, and no others of an earlier call."""
    file = keys_file(deployment).with_name(REPLACING)
    if keys:
        write_owned(deployment, file, document_of((), also=keys))
    else:
        file.unlink(missing_ok=True)
    write_keys(deployment)


def replaced_keys(deployment: Deployment) -> tuple[Accepted, ...]:
    """The keys of the last `accept_also`; none if the file is missing or damaged."""
    try:
        return read_accepted(keys_file(deployment).with_name(REPLACING))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _of_several_engines(deployment: Deployment, coming: Secret | None) -> Iterator[ApiKey]:
    """The keys that several engines accept beside those of clients.

    The router's opens GET /metrics. The owner's is known to each engine since its start, and is here for the time
    in which it is replaced: engines that have not restarted yet accept the new one too.
    """
    router = router_keys(deployment)
    if router is not None:
        yield ApiKey(PROBE_NAME, router.probe, "metrics")
        if deployment.key_is_sound:
            yield ApiKey(OWNER, deployment.key.reveal())
        if coming is not None:
            yield ApiKey(OWNER, coming.reveal())


def remove_keys(deployment: Deployment) -> None:
    """Remove the file and its directory, if they can be removed."""
    with suppress(OSError):
        keys_file(deployment).unlink(missing_ok=True)
        keys_file(deployment).with_name(REPLACING).unlink(missing_ok=True)
        keys_file(deployment).parent.rmdir()


HANDOVER_FILE = "key-handover.json"


def digest_of(key: ApiKey) -> str:
    """The SHA-256 of a key, in hexadecimal digits."""
    return accepted(key).digest.hex()


def key_named(deployment: Deployment, name: str) -> ApiKey | None:
    """The key of `.env` with this name, that of the owner too; `None` if there is none."""
    owner = ApiKey(OWNER, deployment.key.reveal())
    return next((key for key in (owner, *deployment.further_keys) if key.name == name), None)


def write_handover(deployment: Deployment, handover: KeyHandover) -> None:
    """Remember what is changed, before a host hears of it."""
    write_if_changed(deployment.make_state() / HANDOVER_FILE, f"{handover.model_dump_json()}\n", mode=PRIVATE)


def unfinished_handover(deployment: Deployment) -> KeyHandover | None:
    """The change that `.env` has, and maybe not all hosts; `None` if there is none.

    A new key that is not in `.env` is one that no client can have: that change begins again.
    """
    found = read_state(deployment.state / HANDOVER_FILE, KeyHandover)
    if found is None:
        return None
    key = key_named(deployment, found.name)
    if found.coming is None:
        return found if key is None else None
    return found if key is not None and compare_digest(digest_of(key), found.coming) else None


def begun_handover(deployment: Deployment) -> bool:
    """Whether hosts may accept a key that `.env` has no more or not yet."""
    return (deployment.state / HANDOVER_FILE).exists()


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
    remove_state(deployment.state / HANDOVER_FILE)

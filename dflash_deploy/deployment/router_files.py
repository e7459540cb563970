"""`.dflash/router/`: the engines that the router sends to, what it says of them, and its own two keys."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.owned_files import write_owned
from dflash_deploy.errors import FileRefused
from dflash_deploy.intake import read_text
from dflash_deploy.redact import generate_key
from dflash_deploy.serve.router.files import (
    KEYS,
    MANIFEST,
    SEEN,
    RoutedEngine,
    RouterKeys,
    SeenWorker,
    keys_document_of,
    manifest_of,
    read_keys,
    read_manifest,
    read_seen,
)

RETIRING = "retiring"
"""The file with the digest of the API key that is being replaced; engines accept it until the last has restarted."""


def router_directory(deployment: Deployment) -> Path:
    """The directory that the launcher and the router share."""
    return deployment.state / "router"


def router_keys(deployment: Deployment) -> RouterKeys | None:
    """The router's keys; `None` if they are missing or damaged."""
    try:
        return read_keys(router_directory(deployment) / KEYS)
    except (OSError, ValueError):
        return None


def make_router_keys(deployment: Deployment) -> RouterKeys:
    """The router's keys, made if there are none. They are random, and no client has them."""
    keys = router_keys(deployment) or RouterKeys(generate_key().reveal(), generate_key().reveal())
    # the owner of .env may have changed
    _write(deployment, KEYS, keys_document_of(keys))
    return keys


def write_workers(deployment: Deployment, workers: Iterable[RoutedEngine]) -> bool:
    """Write the engines that the router shall send to, by rename; return whether they changed."""
    return _write(deployment, MANIFEST, manifest_of(workers))


def written_workers(deployment: Deployment) -> tuple[RoutedEngine, ...]:
    """The engines that the router shall send to; none if the list is missing or damaged."""
    try:
        return read_manifest(router_directory(deployment) / MANIFEST)
    except (OSError, ValueError):
        return ()


def seen_workers(deployment: Deployment) -> tuple[float, tuple[SeenWorker, ...]] | None:
    """What the router said last of its engines, and when in seconds since the epoch; `None` if it said nothing yet."""
    try:
        return read_seen(router_directory(deployment) / SEEN)
    except (OSError, ValueError):
        return None


def retire_key(deployment: Deployment) -> None:
    """Let the engines accept the present API key beside the next one, until `forget_retired_key`."""
    _write(deployment, RETIRING, sha256(deployment.key.reveal().encode()).hexdigest())


def retired_key(deployment: Deployment) -> bytes | None:
    """The SHA-256 of the API key that is being replaced; `None` if none is."""
    try:
        digest = bytes.fromhex(read_text(router_directory(deployment) / RETIRING, limit=sha256().digest_size * 2))
    except (FileRefused, ValueError):
        return None
    return digest if len(digest) == sha256().digest_size else None


def forget_retired_key(deployment: Deployment) -> None:
    """Accept the replaced API key no longer; the engines notice once the file of keys is written again."""
    (router_directory(deployment) / RETIRING).unlink(missing_ok=True)


def _write(deployment: Deployment, name: str, text: str) -> bool:
    """Write a file for the router."""
    return write_owned(deployment, router_directory(deployment) / name, text)

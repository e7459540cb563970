"""Digests of the further API keys, for a running gateway.

The keys themselves are in `.env` only. `.dflash/keys/` has the digests of the further keys; a running gateway reads
them again when they change. It is a directory of its own, because a container that mounts a single file keeps seeing
the replaced one.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import write_owned
from dflash_deploy.serve.gateway.keys import document_of

KEYS_FILE = "keys.json"


def keys_file(deployment: Deployment) -> Path:
    """The file that the gateway reads."""
    return deployment.state / "keys" / KEYS_FILE


def limits_directory(deployment: Deployment) -> Path:
    """The directory in which native gateways count requests of keys with limits together; they make it."""
    return deployment.state / "limits"


def write_keys(deployment: Deployment) -> bool:
    """Write the keys of DFLASH_API_KEYS for the gateway; return whether they changed.

    The file belongs to the owner of `.env`, as whom the container runs. Raises SettingsRefused for an invalid entry.
    """
    return write_owned(deployment, keys_file(deployment), document_of(deployment.further_keys))


def remove_keys(deployment: Deployment) -> None:
    """Remove the file and its directory, if they can be removed."""
    with suppress(OSError):
        keys_file(deployment).unlink(missing_ok=True)
        keys_file(deployment).parent.rmdir()

"""Digests of the further API keys, for a running gateway.

The keys themselves are in `.env` only. `.dflash/keys/` has the digests of the further keys; a running gateway reads
them again when they change. It is a directory of its own, because a container that mounts a single file keeps seeing
the replaced one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import retired_key, router_keys, write_owned
from dflash_deploy.redact import Secret
from dflash_deploy.serve.api_keys import OWNER, ApiKey
from dflash_deploy.serve.gateway.keys import document_of
from dflash_deploy.serve.router.files import PROBE_NAME

KEYS_FILE = "keys.json"


def keys_file(deployment: Deployment) -> Path:
    """The file that the gateway reads."""
    return deployment.state / "keys" / KEYS_FILE


def write_keys(deployment: Deployment, *, coming: Secret | None = None) -> bool:
    """Write the keys of DFLASH_API_KEYS for the gateway; return whether they changed.

    The file belongs to the owner of `.env`, as whom the container runs. `coming` is the owner's next key, which
    several engines accept already. Raises SettingsRefused for an invalid entry.
    """
    known = (*deployment.further_keys, *_of_several_engines(deployment, coming))
    text = document_of(known, retired_key(deployment))
    return write_owned(deployment, keys_file(deployment), text)


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
        keys_file(deployment).parent.rmdir()

"""`keys show`: an API key of a deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.document import Documented, Fingerprint, Hidden
from dflash_deploy.errors import NotPossible, SettingsRefused
from dflash_deploy.redact import Secret
from dflash_deploy.serve.api_keys import ApiKey
from dflash_deploy.serve.settings import Settings


@dataclass(frozen=True)
class KeyFile(Documented):
    """Where an API key is. The key itself is in no document."""

    file: Path
    """Path of the file that has the key."""
    private: bool
    """Whether only its owner can read the file."""
    fingerprint: Fingerprint
    """The first 8 hexadecimal digits of the key's SHA-256."""
    deployment: Hidden[Deployment]
    key: Hidden[Secret]


def key(directory: Path, name: str | None = None) -> KeyFile:
    """The API key of a deployment, or the further key with this name: `key.reveal()` of the result is its value.

    Raises NoDeployment, SettingsRefused, and NotPossible if no key has the name.
    """
    deployment = Deployment.existing(directory, check=False)
    if name is not None:
        return _file_of(deployment, Secret(key_with(deployment.further_keys, name).key))
    if not deployment.key_is_sound:
        raise SettingsRefused(
            f".env: {Settings.vllm_api_key} is empty, too short, or has characters that files quote",
            hint="make one: `dflash-deploy keys rotate`",
        )
    return _file_of(deployment, deployment.key)


def _file_of(deployment: Deployment, key: Secret) -> KeyFile:
    return KeyFile(deployment.env_file, deployment.is_private(), key.fingerprint, deployment, key)


def key_with(keys: Sequence[ApiKey], name: str) -> ApiKey:
    """The key with this name. Raises NotPossible with the names that exist."""
    for key in keys:
        if key.name == name:
            return key
    names = ", ".join(key.name for key in keys) or "none"
    raise NotPossible(f"no key has the name `{name}`", hint=f"names in {Settings.dflash_api_keys}: {names}")

"""`keys show`: the API key of a deployment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.serve.settings import Settings


@dataclass(frozen=True)
class KeyFile:
    """The file that holds the API key, and what may be said of it. `private`: readable only by its owner."""

    deployment: Deployment
    private: bool

    def document(self) -> dict[str, object]:
        """The `data` of `keys show --json`; the key itself is in no document."""
        return {
            "file": str(self.deployment.env_file),
            "private": self.private,
            "fingerprint": self.deployment.key.fingerprint,
        }


def key(directory: Path) -> KeyFile:
    """The API key of a deployment: `deployment.key.reveal()` is its value. Raises NoDeployment and SettingsRefused."""
    deployment = Deployment.existing(directory, check=False)
    if not deployment.key_is_sound:
        raise SettingsRefused(
            f".env: {Settings.vllm_api_key} is empty, too short, or has characters that files quote",
            hint="make one: dflash-deploy keys rotate",
        )
    return KeyFile(deployment, deployment.is_private())

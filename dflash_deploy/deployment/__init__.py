"""The deployment directory: `.env`, `compose.yaml`, `.dflash/`. It is the only state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.deployment.lock import command_lock, locked
else:
    __getattr__ = lazily(
        __name__,
        {
            ".directory": ("Deployment",),
            ".lock": ("command_lock", "locked"),
        },
    )

__all__ = ["Deployment", "command_lock", "locked"]

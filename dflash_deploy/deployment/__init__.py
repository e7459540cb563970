"""The deployment directory: `.env`, `compose.yaml`, `.dflash/`. It is the only state."""

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.deployment.render import render

__all__ = ["Deployment", "command_lock", "render"]

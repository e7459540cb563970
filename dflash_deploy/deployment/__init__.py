"""The deployment directory: `.env`, `compose.yaml`, `.dflash/`. It is the only state."""

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.lock import hold
from dflash_deploy.deployment.render import render

__all__ = ["Deployment", "hold", "render"]

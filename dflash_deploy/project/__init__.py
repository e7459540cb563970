"""The deployment directory: `.env`, `compose.yaml`, `.dflash/`. It is the only state there is."""

from dflash_deploy.project.deployment import Deployment
from dflash_deploy.project.lock import hold
from dflash_deploy.project.render import render

__all__ = ["Deployment", "hold", "render"]

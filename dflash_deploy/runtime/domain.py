"""The domain of a deployment: its host, the directory of its certificates, and addresses as clients here write them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

# not from the package: the Caddyfile's module imports the gateway, and most commands need only the host
from dflash_deploy.deployment.door_files import storage_of
from dflash_deploy.door.site import HTTP, published_site
from dflash_deploy.plan.replicas import LOOPBACK

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.serve.settings import Settings as Values

WILDCARDS = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104
"""Where a client on this machine reaches what listens on all addresses."""


def root_of(deployment: Deployment, settings: Values) -> Path | None:
    """The file of the root certificate that clients must trust; `None` if a public authority signs."""
    site = published_site(settings)
    if settings.dflash_acme_root:
        return deployment.path(settings.dflash_acme_root)
    if site is None or settings.dflash_acme_url or not site.is_private:
        return None
    return storage_of(deployment) / "pki" / "authorities" / "local" / "root.crt"


def may_listen_from(port: int) -> str:
    """The command that lets all users listen on a port, on that of HTTP, and on those above.

    Not `setcap` of Caddy: Linux clears the signal by which a program with capabilities ends with its supervisor.
    """
    return f"`sudo sysctl net.ipv4.ip_unprivileged_port_start={min(port, HTTP)}`"


def joined(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

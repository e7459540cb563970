"""What the published door of a deployment serves and where it sends it, from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.door import Authority, Door, Plain, Site, site_of
from dflash_deploy.plan.replicas import LOOPBACK, engine_port, router_port
from dflash_deploy.runtime.supervised import DOOR
from dflash_deploy.serve.gateway.body_limit import MIB

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.serve.settings import Settings as Values

WILDCARDS = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104
"""Where a client on this machine reaches what listens on all addresses."""


def published_site(settings: Values) -> Site | None:
    """The host with a certificate; `None` without a domain. Raises SettingsRefused."""
    if not settings.published:
        return None
    ports = {"http_port": settings.dflash_http_port, "https_port": settings.dflash_https_port}
    return site_of(settings.dflash_domain, **ports)


def storage_of(deployment: Deployment) -> Path:
    """The directory of the door's certificates and keys."""
    return deployment.state / DOOR / "data"


def root_of(deployment: Deployment, settings: Values) -> Path | None:
    """The file of the root certificate that clients must trust; `None` if a public authority signs."""
    site = published_site(settings)
    if settings.dflash_acme_root:
        return deployment.path(settings.dflash_acme_root)
    if site is None or settings.dflash_acme_url or not site.is_private:
        return None
    return storage_of(deployment) / "pki" / "authorities" / "local" / "root.crt"


def door_of(deployment: Deployment, settings: Values) -> Door:
    """What the door publishes: several engines with their router, or one engine under a domain."""
    site, plain = published_site(settings), Plain(settings.dflash_bind, settings.dflash_port)
    several = settings.several_engines
    numbers = range(1, settings.replicas + 1)
    engines = tuple(f"{LOOPBACK}:{engine_port(settings.dflash_port, number)}" for number in numbers)
    root = str(deployment.path(settings.dflash_acme_root).absolute()) if settings.dflash_acme_root else ""
    return Door(
        site or plain,
        engines if several else (joined(WILDCARDS.get(plain.host, plain.host), plain.port),),
        str(storage_of(deployment)),
        settings.max_body_mib * MIB,
        authority=Authority(settings.dflash_acme_url, root),
        preflights=settings.allows_origins,
        router=f"{LOOPBACK}:{router_port(settings.dflash_port)}" if several else "",
        local=plain if several and site else None,
    )


def joined(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

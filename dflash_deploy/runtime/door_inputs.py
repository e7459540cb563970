"""What the published door of a deployment serves and where it sends it, from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.deployment.door_files import storage_of
from dflash_deploy.door import Authority, Door, Plain
from dflash_deploy.door.site import published_site
from dflash_deploy.plan.replicas import LOOPBACK, engine_port, router_port
from dflash_deploy.runtime.domain import WILDCARDS, joined
from dflash_deploy.serve.gateway.asgi import MIB

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.serve.settings import Settings as Values


def door_of(deployment: Deployment, settings: Values) -> Door:
    """What the door publishes: several engines with their router, or one engine under a domain."""
    site, plain = published_site(settings), Plain(settings.dflash_bind, settings.dflash_port)
    several = settings.several_engines
    numbers = range(1, settings.replicas + 1)
    here = (f"{LOOPBACK}:{engine_port(settings.dflash_port, number)}" for number in numbers)
    engines = (*here, *settings.router_engines)
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

"""`.dflash/door/`: what the door's container reads, and the certificates that it writes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.owned_files import make_owned, write_owned
from dflash_deploy.deployment.service_names import (
    DOOR,
    INNER_HTTP_PORT,
    INNER_HTTPS_PORT,
    INNER_PORT,
    ROUTER,
    SERVICE,
    engine_service,
)
from dflash_deploy.door.site import Authority, Plain, published_site
from dflash_deploy.errors import FileRefused
from dflash_deploy.intake import MIB, read_text
from dflash_deploy.serve.router.metrics import guarded_port

if TYPE_CHECKING:
    from dflash_deploy.door import Door
    from dflash_deploy.serve.settings import Settings

CADDYFILE, ROOT = "Caddyfile", "acme-root.crt"
"""The files that the container reads."""

INSIDE, CERTIFICATES = "/run/dflash/door", "/run/dflash/certificates"
"""Where the container has them, and where it keeps certificates; compose/door.yaml and domain.yaml mount both."""

_NONE = "/tmp/caddy"  # noqa: S108 - in the container, whose /tmp is its own
"""Where it would keep certificates without a domain."""

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


def door_directory(deployment: Deployment) -> Path:
    """The directory of the door."""
    return deployment.state / DOOR


def storage_of(deployment: Deployment) -> Path:
    """The directory of the door's certificates and keys."""
    return door_directory(deployment) / "data"


def door_files(deployment: Deployment, settings: Settings, *, exported: bool = False) -> dict[str, str]:
    """The files that the door's container reads: its Caddyfile, and the root certificate of an own authority.

    `exported`: for a folder without the file of keys with which the router guards its metrics.
    """
    from dflash_deploy.door import caddyfile  # noqa: PLC0415 - needed behind a door only

    door = door_of(settings)
    files = {CADDYFILE: caddyfile(replace(door, router_metrics="") if exported else door)}
    if settings.published and settings.dflash_acme_root:
        files[ROOT] = certificates_in(deployment.path(settings.dflash_acme_root))
    return files


def door_of(settings: Settings) -> Door:
    """What the door publishes of its container: several engines with their router, or one engine under a domain."""
    from dflash_deploy.door import Door  # noqa: PLC0415 - needed behind a door only

    several, site = settings.several_engines, published_site(settings)
    # in the container; several.yaml has the address on the machine, and one engine has its own there
    plain = Plain("0.0.0.0", INNER_PORT)  # noqa: S104
    numbers = range(1, settings.replicas + 1)
    here = tuple(f"{name}:{INNER_PORT}" for name in (map(engine_service, numbers) if several else (SERVICE,)))
    return Door(
        site or plain,
        (*here, *settings.router_engines),
        CERTIFICATES if site else _NONE,
        settings.max_body_mib * MIB,
        authority=Authority(settings.dflash_acme_url, f"{INSIDE}/{ROOT}" if settings.dflash_acme_root else ""),
        preflights=settings.allows_origins,
        router=f"{ROUTER}:{INNER_PORT}" if several else "",
        local=plain if site else None,
        measured=several,
        router_metrics=f"{ROUTER}:{guarded_port(INNER_PORT)}" if several else "",
        inner=replace(site, http_port=INNER_HTTP_PORT, https_port=INNER_HTTPS_PORT) if site else None,
    )


def write_door(deployment: Deployment, settings: Settings) -> None:
    """Write what the door's container reads, and make the directory of certificates; both belong to its user.

    Raises BadInput if one of the directories is a link.
    """
    for name, text in door_files(deployment, settings).items():
        write_owned(deployment, door_directory(deployment) / name, text)
    make_owned(deployment, storage_of(deployment))


def certificates_in(file: Path) -> str:
    """Return the certificates of a PEM file, and nothing else of it: the owner of `.env` can read the copy.

    Empty if the file has none or cannot be read: it is checked before a start.
    """
    try:
        text = read_text(file, lossy=True)
    except FileRefused:
        return ""
    return "".join(f"{found[0]}\n" for found in _CERTIFICATE.finditer(text))

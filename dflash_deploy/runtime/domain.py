"""The domain of a deployment, for both runtimes: its ports, its certificates, and its addresses.

Both runtimes need free ports, a root certificate that can be read, and a certificate in time. Addresses are written as
clients on this machine write them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.deployment.front import certificates_in, storage_of
from dflash_deploy.door.caddy import refusal, shaken
from dflash_deploy.door.site import HTTP, published_site
from dflash_deploy.errors import BadInput, FileMissing, PortTaken
from dflash_deploy.host.ports import listener_on
from dflash_deploy.runtime.protocol import LogPage
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.serve.field import Field
    from dflash_deploy.serve.settings import Settings as Values


# not from the package: the Caddyfile's module imports the gateway, and most commands need only the host


LOOPBACK = "127.0.0.1"

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


CERTIFIED = 120.0
"""Seconds for a certificate: a public authority needs a few, and tries again after a failure that passes."""

PAUSE = 0.5
"""Seconds between two handshakes."""

EVERYWHERE = "0.0.0.0"  # noqa: S104
"""A domain is served on all addresses of this machine."""

_ERROR = "Error: "
"""How the line begins in which Caddy says why it ends."""


def check_root(deployment: Deployment, settings: Values) -> None:
    """Raise FileMissing if the root certificate of an own authority is named and missing, BadInput if it is not PEM."""
    root = settings.dflash_acme_root if settings.published else ""
    if not root:
        return
    hint = "name the file with the root certificate of your authority (PEM)"
    if not deployment.path(root).is_file():
        raise FileMissing(f"{Settings.dflash_acme_root}: {root} does not exist", hint=hint)
    if not certificates_in(deployment.path(root)):
        raise BadInput(f"{Settings.dflash_acme_root}: {root} has no certificate that can be read", hint=hint)


def ports_of(settings: Values) -> tuple[tuple[Field[int], int], ...]:
    """The ports of the domain, each with its setting; empty without a domain."""
    if not settings.published:
        return ()
    return (
        (Settings.dflash_https_port, settings.dflash_https_port),
        (Settings.dflash_http_port, settings.dflash_http_port),
    )


def check_free(field: Field[int], port: int, held: Set[int]) -> None:
    """Raise PortTaken if another process has a port of the domain; `held` are those of the running door."""
    if port not in held and listener_on(EVERYWHERE, port):
        raise PortTaken(
            f"port {port} is already in use, and {Settings.dflash_domain} needs it",
            hint=f"find the process with `ss -ltnp`, or set another {field} in .env",
        )


def awaited_certificate(
    deployment: Deployment,
    settings: Values,
    ended: Callable[[], str],
    read_log: Callable[[str], LogPage],
    seconds: float,
    *,
    cursor: str = "",
) -> str:
    """Wait for a certificate that clients accept; return why there is none after `seconds`, empty if there is.

    `ended` returns what Caddy said at its end, empty while it runs. Its log is read from `cursor` on, each line once.
    It returns early if the authority refuses or cannot be reached, with Caddy's words, and if Caddy ends.
    """
    site = published_site(settings)
    if site is None:
        return ""
    root, deadline = root_of(deployment, settings), time.monotonic() + seconds
    refused = ""
    while problem := shaken(site, root):
        if said := ended():
            return f"Caddy has ended: {said}"
        page = read_log(cursor)
        refused, cursor = refusal(page.lines, refused), page.cursor
        if refused:
            return f"no certificate from the authority: {refused}"
        if time.monotonic() > deadline:
            return problem
        time.sleep(PAUSE)
    return ""


def said_at_end(lines: Sequence[str]) -> str:
    """What Caddy said last, which is why it ended."""
    spoken = [line for line in lines if line.strip()]
    said = next((line for line in reversed(spoken) if line.startswith(_ERROR)), spoken[-1] if spoken else "")
    return said.removeprefix(_ERROR) or "it has ended without a word"

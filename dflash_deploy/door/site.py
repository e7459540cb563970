"""Where clients reach the endpoint, and who signs its certificate."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_deploy.errors import SettingsRefused
from dflash_deploy.serve.field import DOMAIN_HINT, domain_in

if TYPE_CHECKING:
    from dflash_deploy.serve.settings import Settings

HTTP, HTTPS = 80, 443
"""The ports of the schemes."""

PRIVATE_NAMES = ("localhost", "local", "internal", "home.arpa", "lan", "test")
"""Last parts of names for which no public authority signs a certificate."""


@dataclass(frozen=True)
class Site:
    """A host with a certificate. `host` is a name in lower case, or an IP address in its shortest form."""

    host: str
    http_port: int = HTTP
    https_port: int = HTTPS

    @property
    def url(self) -> str:
        """The URL of the endpoint, without a path."""
        return f"https://{self._authority(self.https_port, HTTPS)}"

    @property
    def plain_url(self) -> str:
        """The URL that is redirected to `url`."""
        return f"http://{self._authority(self.http_port, HTTP)}"

    def _authority(self, port: int, usual: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if port == usual else f"{host}:{port}"

    @property
    def is_address(self) -> bool:
        """Whether the host is an IP address; clients send no name then."""
        return _is_address(self.host)

    @property
    def is_private(self) -> bool:
        """Whether no public authority signs a certificate for the host: Caddy's own one does."""
        last = self.host.rsplit(".", 1)[-1]
        return self.is_address or "." not in self.host or last in PRIVATE_NAMES or self.host.endswith(".home.arpa")


@dataclass(frozen=True)
class Plain:
    """One address of this machine with plain HTTP. `host` is an IP address."""

    host: str
    port: int


@dataclass(frozen=True)
class Authority:
    """An ACME authority. `directory` is its URL, `root` the file with its own root certificate if it is private."""

    directory: str = ""
    root: str = ""


def published_site(settings: Settings) -> Site | None:
    """The host with a certificate; `None` without a domain. Raises SettingsRefused."""
    if not settings.published:
        return None
    ports = {"http_port": settings.dflash_http_port, "https_port": settings.dflash_https_port}
    return site_of(settings.dflash_domain, **ports)


def site_of(text: str, *, http_port: int = HTTP, https_port: int = HTTPS) -> Site:
    """The site of a domain name or an IP address. Raises SettingsRefused for anything else."""
    host = domain_in(text.strip())
    if host is None:
        raise SettingsRefused(f"`{text}` is not a valid domain name or IP address", hint=DOMAIN_HINT)
    return Site(host, http_port, https_port)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

"""The domain of a deployment. Caddy serves it with images/door/Caddyfile, and knows no key."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from dflash_deploy.assets import asset
from dflash_deploy.host.ports import reached
from dflash_deploy.serve.settings import Settings

HTTP, HTTPS = 80, 443  # the ports of a domain

# Last parts of names for which no public authority signs a certificate.
PRIVATE_NAMES = ("localhost", "local", "internal", "home.arpa", "lan", "test")


@dataclass(frozen=True)
class Site:
    """A host with a certificate: a name in lower case, or an IP address in its shortest form."""

    host: str

    @property
    def url(self) -> str:
        """The URL of the endpoint, without a path."""
        return f"https://[{self.host}]" if ":" in self.host else f"https://{self.host}"

    @property
    def is_address(self) -> bool:
        """Whether the host is an IP address."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    @property
    def is_private(self) -> bool:
        """Whether no public authority signs a certificate for the host: Caddy's own one does."""
        return (
            self.is_address or "." not in self.host or self.host.endswith(tuple(f".{name}" for name in PRIVATE_NAMES))
        )

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of the Caddyfile that depend on the host."""
        return {Settings.dflash_domain.name: self.host, "DFLASH_ISSUER": "internal" if self.is_private else "acme"}


def published_site(settings: Settings) -> Site | None:
    """The host with a certificate; `None` without a domain."""
    return Site(settings.dflash_domain) if settings.published else None


def own_caddy(site: Site, settings: Settings) -> str:
    """The command that serves the domain in front of a native engine, with a Caddy that is installed here."""
    gateway = reached(settings.dflash_bind, settings.dflash_port)
    told = {**site.variables, "DFLASH_GATEWAY": gateway, Settings.max_body_mib.name: str(settings.max_body_mib)}
    if settings.allowed_origins:
        told[Settings.allowed_origins.name] = ",".join(settings.allowed_origins)
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in told.items())
    return f"{variables} caddy run --config {shlex.quote(str(asset('images', 'door', 'Caddyfile')))}"

"""The published door: Caddy with TLS in front of the engine's gateway, or of a router. It knows no key."""

from dflash_deploy.door.caddy import OLDEST, Caddy, find_caddy
from dflash_deploy.door.caddyfile import ROUTER_METRICS_PATH, Door, caddyfile, metrics_path
from dflash_deploy.door.handshake import refusal, shaken
from dflash_deploy.door.site import Authority, Plain, Site, site_of

__all__ = [
    "OLDEST",
    "ROUTER_METRICS_PATH",
    "Authority",
    "Caddy",
    "Door",
    "Plain",
    "Site",
    "caddyfile",
    "find_caddy",
    "metrics_path",
    "refusal",
    "shaken",
    "site_of",
]

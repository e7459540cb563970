"""Fetches what a request names by its address, from hosts that the owner listed, and never from the owner's network.

A host with an address that is not public is fetched only if the list names it, and never after a redirect: the list
says what the owner trusts, a redirect what a stranger wants.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address

from aiohttp import ClientError, ClientSession, TCPConnector, ThreadedResolver
from aiohttp.abc import ResolveResult
from yarl import URL

from dflash_deploy.serve.gateway.asgi import ErrorAnswer

SECONDS = 20.0  # for one address, with its redirects
REDIRECTS = 3

ANY = "all"  # the word of the list for every public host
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True)
class Fetched:
    """The content of an address, and its type as the host states it."""

    content: bytes
    kind: str


async def fetch(address: str, domains: tuple[str, ...], most: int) -> Fetched:
    """Fetch at most `most` bytes. Raises ErrorAnswer if the host is not listed, or for any reason has no picture."""
    url = _parsed(address)
    try:
        async with asyncio.timeout(SECONDS):
            for redirects in range(REDIRECTS + 1):
                found = await _one(url, domains, most, private=not redirects)
                if isinstance(found, Fetched):
                    return found
                url = found
    except (ClientError, OSError, ValueError, TimeoutError):
        # one answer for all reasons: it does not tell which ports of a network are open
        pass
    raise ErrorAnswer(400, "a picture cannot be fetched from its address: send it as a data URI", "image_not_fetched")


async def _one(url: URL, domains: tuple[str, ...], most: int, *, private: bool) -> Fetched | URL:
    """The content of an address, or where it redirects to."""
    host = (url.host or "").lower()
    listed = host in domains
    if url.scheme not in {"http", "https"} or url.user or not (listed or ANY in domains):
        place = f"`{host[:80]}`" if host else f"a `{url.scheme[:20]}:` address"
        said = f"this endpoint fetches no picture from {place}: send it as a data URI, data:image/png;base64,..."
        raise ErrorAnswer(400, said, "image_url_refused")
    private = private and listed
    # a literal is not resolved
    if not private and _is_literal(host) and not is_public(host):
        raise OSError("not a public address")
    connector = TCPConnector(resolver=ThreadedResolver() if private else _Public(), force_close=True, limit=1)
    async with (
        ClientSession(connector=connector) as session,
        session.get(url, allow_redirects=False) as answer,
    ):
        if 300 <= answer.status < 400 and "Location" in answer.headers:
            return url.join(URL(answer.headers["Location"]))
        kind = answer.content_type
        if answer.status != 200 or not kind.startswith(("image/", "video/", "audio/")):
            raise ValueError("no picture")
        content = await answer.content.read(most + 1)
        while len(content) <= most and (more := await answer.content.read(most + 1 - len(content))):
            content += more
        if len(content) > most:
            raise ValueError("too large")
        return Fetched(content, kind)


def _parsed(address: str) -> URL:
    try:
        return URL(address.strip())
    except ValueError:
        raise ErrorAnswer(400, "the address of a picture is not valid", "image_url_refused") from None


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Whether an address is one of the internet, and none that leads to a private one by another protocol."""
    found = ip_address(address)
    if isinstance(found, IPv6Address) and (found.sixtofour or found.teredo or found in _NAT64):
        return False
    return found.is_global and not found.is_multicast


class _Public(ThreadedResolver):
    """Resolves names to public addresses only, at the moment of connecting."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises OSError if there is none."""
        found = [one for one in await super().resolve(host, port, family) if is_public(one["host"])]
        if not found:
            raise OSError("no public address")
        return found

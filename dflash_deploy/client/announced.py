"""A request whose body is announced and never sent, which shows the limit that a server has for bodies."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection, and for an answer that needs no engine."""


def announce(url: httpx.URL, authorization: Mapping[str, str], size: int, trust: SSLContext | None) -> int:
    """Send the headers of a POST of `size` bytes and return the HTTP status.

    Raises OSError, ValueError or http.client.HTTPException; TimeoutError if the server waits for the body.
    """
    connection = (
        http.client.HTTPSConnection(url.host, url.port, timeout=CONNECT_TIMEOUT, context=trust)
        if url.scheme == "https"
        else http.client.HTTPConnection(url.host, url.port, timeout=CONNECT_TIMEOUT)
    )
    try:
        connection.putrequest("POST", url.path)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(size))):
            connection.putheader(name, value)
        for name, value in authorization.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()

"""Connections that wait: their number and their time are limited before any key is known, so that none shuts the door.

A connection waits while no request of it is being answered: after it was opened, while its head arrives, and between
two requests. Anyone can hold such a connection for nothing. So their number is limited, and of too many the oldest of
the address that holds most is closed, which is never one that has just sent a request.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from dflash_deploy.serve.gateway import IDLE_SECONDS

FIRST_SECONDS = 20.0  # seconds for the head of a connection's first request

MOST_HEAD = 1 << 18  # bytes of a head in uvicorn, which has no limit with httptools. aiohttp's own is 8 KiB for a line.
SHARE = 4  # A part of the files that a process may open is for connections that wait
MOST_WAITING = 4096

EVERY = 5.0  # seconds between two looks for those that waited too long


class WaitingConnections:
    """The connections of a server that wait, the oldest first. A connection is named by its protocol object."""

    def __init__(
        self, most: int | None = None, first: float = FIRST_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`most`: connections that may wait at the same time; `None`: a share of the files of this process."""
        self._first = first
        self._most = most or min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // SHARE, MOST_WAITING)
        self._clock = clock
        self._open: dict[Hashable, _Connection] = {}
        self._waiting: OrderedDict[Hashable, _Connection] = OrderedDict()
        self._hosts: Counter[str] = Counter()
        self._looking = False

    def opened(self, connection: Hashable, transport: asyncio.Transport) -> None:
        """A client has connected."""
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        self._open[connection] = _Connection(transport, host, self._clock() + self._first)
        self._wait(connection)
        if len(self._waiting) > self._most:
            worst = max(self._hosts, key=self._hosts.__getitem__)
            self._close(next(one for one, known in self._waiting.items() if known.host == worst))
        if not self._looking:
            self._look()

    def received(self, connection: Hashable, count: int) -> None:
        """Bytes have come. Closes a connection whose head does not end."""
        if (known := self._waiting.get(connection)) is not None:
            known.head += count
            if known.head > MOST_HEAD:
                self._close(connection)

    def began(self, connection: Hashable) -> None:
        """The head of a request is complete."""
        if (known := self._waiting.pop(connection, None)) is not None:
            self._hosts[known.host] -= 1

    def ended(self, connection: Hashable) -> None:
        """A request was answered, and its connection may send another."""
        if connection in self._open and connection not in self._waiting:
            self._open[connection].until, self._open[connection].head = self._clock() + IDLE_SECONDS, 0
            self._wait(connection)

    def closed(self, connection: Hashable) -> None:
        """A connection has ended, or speaks another protocol now."""
        self.began(connection)
        self._open.pop(connection, None)

    def look(self) -> None:
        """Close those that waited too long."""
        now = self._clock()
        for connection in [connection for connection, known in self._waiting.items() if known.until <= now]:
            self._close(connection)
        # without the hosts that have none
        self._hosts = +self._hosts

    def _look(self) -> None:
        self.look()
        self._looking = bool(self._open)
        if self._looking:
            asyncio.get_running_loop().call_later(min(EVERY, self._first), self._look)

    def _wait(self, connection: Hashable) -> None:
        known = self._waiting[connection] = self._open[connection]
        self._hosts[known.host] += 1

    def _close(self, connection: Hashable) -> None:
        transport = self._open[connection].transport
        self.closed(connection)
        transport.abort()


class _Connection:
    __slots__ = ("head", "host", "transport", "until")

    def __init__(self, transport: asyncio.Transport, host: str, until: float) -> None:
        self.transport, self.host, self.until, self.head = transport, host, until, 0


# The classes of uvicorn's connections (0.30 to 0.54), by their modules.
UVICORN = {
    "uvicorn.protocols.http.httptools_impl": "HttpToolsProtocol",
    "uvicorn.protocols.http.h11_impl": "H11Protocol",
}


def guard_uvicorn() -> None:
    """Limit the connections of the server of vLLM and SGLang, which has no limit of its own; once in a process.

    Its log has no line for each request without a valid key: the gateway says their number.
    """
    for module, name in UVICORN.items():
        protocol = getattr(sys.modules.get(module), name, None)
        if protocol is not None and not hasattr(protocol, "dflash_guard"):
            protocol.dflash_guard = WaitingConnections()
            _guard(protocol, protocol.dflash_guard)
            logging.getLogger("uvicorn.access").addFilter(_is_admitted)


def _is_admitted(line: logging.LogRecord) -> bool:
    # the last argument of a line is the status (uvicorn 0.30 to 0.54)
    return not (isinstance(line.args, tuple) and line.args[-1:] == (401,))


def _guard(protocol: Any, waiting: WaitingConnections) -> None:
    made, received, lost = protocol.connection_made, protocol.data_received, protocol.connection_lost
    completed = protocol.on_response_complete

    def connection_made(self: Any, transport: asyncio.Transport) -> None:
        made(self, transport)
        waiting.opened(self, transport)

    def data_received(self: Any, data: bytes) -> None:
        received(self, data)
        if self.transport.get_protocol() is not self:
            # a websocket from here on
            waiting.closed(self)
        elif self.cycle is not None and not self.cycle.response_complete:
            waiting.began(self)
        elif self.cycle is None or not self.cycle.more_body:
            # not the rest of a body whose request was answered early
            waiting.received(self, len(data))

    def connection_lost(self: Any, problem: Exception | None) -> None:
        waiting.closed(self)
        lost(self, problem)

    def on_response_complete(self: Any) -> None:
        waiting.ended(self)
        completed(self)

    protocol.connection_made, protocol.data_received = connection_made, data_received
    protocol.connection_lost, protocol.on_response_complete = connection_lost, on_response_complete

"""The server of the page: a socket on loopback, NiceGUI behind the guard, until Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dflash_deploy.errors import PortTaken, PreflightRefused
from dflash_deploy.features.page.guard import Guard
from dflash_deploy.operations.ask import asked
from dflash_deploy.serve.extras import install_command
from dflash_deploy.serve.gateway.connections import guard_uvicorn

if TYPE_CHECKING:
    from dflash_deploy.features.page.facts import PageSource

LOOPBACK = "127.0.0.1"

LARGEST_MESSAGE = 2**20 * 8  # bytes that a browser sends at once on its WebSocket: the text of a question, escaped
LAST_REQUESTS = 1  # seconds that open requests get after Ctrl-C


def check_installed() -> None:
    """Raises PreflightRefused without the packages of the extra."""
    if find_spec("nicegui") is None or find_spec("markdown_it") is None:
        raise PreflightRefused("the page needs NiceGUI, which is missing", hint=install_command("web"))


@dataclass(frozen=True)
class Listening:
    """A page whose port is open. `address` lets one browser in."""

    address: str
    port: int
    _guard: Guard
    _socket: socket.socket

    def run(self) -> None:
        """Answer requests until Ctrl-C, which raises KeyboardInterrupt."""
        import uvicorn  # noqa: PLC0415 - a part of the extra

        config = uvicorn.Config(
            self._guard,
            log_level="error",
            access_log=False,
            # headers of a proxy would replace the address of the peer
            proxy_headers=False,
            server_header=False,
            ws_max_size=LARGEST_MESSAGE,
            timeout_graceful_shutdown=LAST_REQUESTS,
        )
        # a head without an end takes memory before its cookie is read; the guard needs the protocol's module
        config.load()
        guard_uvicorn()
        uvicorn.Server(config).run(sockets=[self._socket])


@contextmanager
def listening(place: PageSource, port: int | None = None) -> Iterator[Listening]:
    """Yield the page of an endpoint that answers, on a port of loopback, a free one if it is `None`.

    Raises PortTaken, and what `asked` raises.
    """
    with (
        _listener(port) as listener,
        asked(place.directory, url=place.url, key_file=place.key_file, model=place.model) as found,
    ):
        from dflash_deploy.features.page.conversation import Dialogue  # noqa: PLC0415 - parts of the extra
        from dflash_deploy.features.page.view import application  # noqa: PLC0415 - takes seconds to import

        chosen = listener.getsockname()[1]
        guard = Guard(application(Dialogue(found), place), chosen)
        yield Listening(f"http://{LOOPBACK}:{chosen}{guard.path}", chosen, guard, listener)


@contextmanager
def _listener(port: int | None) -> Iterator[socket.socket]:
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((LOOPBACK, port or 0))
        except OSError:
            raise PortTaken(f"port {port} of {LOOPBACK} is in use", hint="leave out --port to get a free one") from None
        # a browser may connect before the server runs
        opened.listen()
        yield opened

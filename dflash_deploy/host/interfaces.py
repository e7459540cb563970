"""Reads the links of this machine, and asks whether others answer over them."""

from __future__ import annotations

import socket
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from dflash_deploy.errors import FileRefused
from dflash_deploy.host.ask import ask
from dflash_deploy.host.links import Link, links_of
from dflash_deploy.intake import read_text
from dflash_deploy.serve.gateway.scopes import LIVENESS

SYS = Path("/sys/class")

PATTERNS = (
    "net/*/speed",
    "infiniband/*/device/net/*",
    "infiniband/*/ports/*/gids/*",
    "infiniband/*/ports/*/gid_attrs/types/*",
)
"""Files and directories of /sys/class that `links_of` takes."""

MOST_FILES = 4000

PEER_TIMEOUT = 5.0
"""Seconds for an answer of another host."""


def read_links() -> tuple[Link, ...]:
    """Return the links of this machine; none if `ip` is missing."""
    shown = ask("ip", "-j", "address", timeout=10)
    return links_of(shown.out, read_sysfs()) if shown.good else ()


def read_sysfs(root: Path = SYS) -> dict[str, str]:
    """Return the files of /sys/class that PATTERNS match, by their path below it. A directory is an empty text."""
    found: dict[str, str] = {}
    for pattern in PATTERNS:
        for path in sorted(root.glob(pattern))[:MOST_FILES]:
            text = ""
            # the kernel refuses the speed of an interface that is down, and empty rows of the table of GIDs
            with suppress(FileRefused):
                text = "" if path.is_dir() else read_text(path, lossy=True).strip()
            found[str(path.relative_to(root))] = text
    return found


def answers(address: str, *, source: str, port: int = 22) -> bool:
    """Whether another host answers on the network of `source`: it accepts a connection, or refuses it."""
    try:
        socket.create_connection((address, port), PEER_TIMEOUT, (source, 0)).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def hangs(host: str, port: int) -> bool:
    """Whether the engine at this address says that it computes nothing; false if it does not listen or is silent."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - a server's wildcard address
    connection = HTTPConnection(reachable, port, timeout=PEER_TIMEOUT)
    try:
        connection.request("GET", LIVENESS)
        return connection.getresponse().status == HTTPStatus.SERVICE_UNAVAILABLE
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()

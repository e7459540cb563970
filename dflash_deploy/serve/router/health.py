"""The health check of the router's container: does SMG listen? Whether engines answer is the engines' own check."""

from __future__ import annotations

import os
import sys
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException

from dflash_deploy.serve.settings import Settings

SECONDS = 5.0
"""Docker's limit for a check is ten."""


def listens(port: int) -> bool:
    """Whether the router on this port of this machine says that it is alive."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", "/liveness")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if listens(Settings.dflash_port.read(os.environ)) else 1)

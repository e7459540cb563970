"""`python3 -m dflash_deploy.serve.drain SECONDS`: the last wait of an engine's pod before SIGTERM.

Engines break off answers at SIGTERM. So this ends once no request is in flight, or after SECONDS. Clients and routers
learn that a pod ends only after it began to end: the first seconds pass also without a request.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException

from dflash_deploy.serve.gateway.keys import METRICS
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import read_secrets
from dflash_deploy.serve.settings import Settings

SETTLES = 5
"""Seconds in which requests still come. Proxies take a few to learn that a pod ends."""

QUIET = 3
"""Readings in a row without a request in flight after which nothing is on its way either."""

POLL = 0.5

ANSWERS = 5.0
"""Seconds for one answer of the engine."""

InFlight = Callable[[], int | None]
"""How many requests are in flight; `None` if that cannot be known now."""

_IN_FLIGHT = re.compile(r"^dflash_key_requests_in_flight(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


def drained(in_flight: InFlight, seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Wait until no request is in flight: at least SETTLES, and then at most `seconds`. Whether none was left."""
    sleep(SETTLES)
    deadline, quiet = clock() + seconds, 0
    while True:
        quiet = quiet + 1 if in_flight() == 0 else 0
        if quiet == QUIET or clock() >= deadline:
            return quiet > 0
        sleep(POLL)


def requests_of(host: str, port: int, headers: Mapping[str, str]) -> int | None:
    """The requests in flight, as the gateway of an engine counts them. 0 if nothing listens, as after its end."""
    connection = HTTPConnection(host, port, timeout=ANSWERS)
    try:
        connection.request("GET", METRICS, headers=dict(headers))
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
    except ConnectionRefusedError:
        return 0
    except (OSError, HTTPException):
        # a busy engine
        return None
    finally:
        connection.close()
    if answer.status != HTTPStatus.OK:
        return None
    # keys that were never used have no line
    return int(sum(map(float, _IN_FLIGHT.findall(text))))


def main(argv: list[str]) -> int:
    """Wait; returns 0 also if requests are left: Kubernetes ends the container in any case."""
    settings = Settings(os.environ)
    try:
        key = read_secrets(os.environ).get(Settings.vllm_api_key.name, "")
    except Refused:
        key = ""
    headers = {"Authorization": f"Bearer {key}"}
    port = settings.dflash_port
    drained(lambda: requests_of("127.0.0.1", port, headers), float(argv[0]), time.monotonic, time.sleep)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

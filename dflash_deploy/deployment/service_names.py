"""Names and ports that the services of `compose.yaml` have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment

SERVICE, ROUTER, DOOR = "engine", "router", "door"
"""The service of a single engine, which is also the beginning of the names of several; their router; the door."""

INNER_PORT = 8000
"""The port of engines, router and door in their containers; the files of compose/ set it."""

INNER_HTTP_PORT, INNER_HTTPS_PORT = 8080, 8443
"""The ports of a domain in the door's container; compose/domain.yaml maps those of the machine to them."""


def service_of(deployment: Deployment) -> str:
    """The service of a deployment's engine; of one of several if `deployment` is one of them."""
    return SERVICE if deployment.member is None else engine_service(deployment.member)


def engine_service(number: int) -> str:
    """The service of one of several engines, counted from 1."""
    return f"{SERVICE}-{number}"

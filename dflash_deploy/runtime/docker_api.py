"""A client of Docker's API, for the Docker that the `docker` command uses."""

from __future__ import annotations

import docker
from docker.errors import DockerException

from dflash_deploy.errors import EngineMissing
from dflash_deploy.host import find_container_engine, why_no_container_engine


def docker_client() -> docker.DockerClient:
    """Return a client of Docker's API. Raises EngineMissing if Docker does not respond."""
    engine = find_container_engine()
    try:
        if engine is None:
            raise DockerException
        return docker.DockerClient(base_url=engine.host or None)
    except DockerException:
        message, hint = why_no_container_engine()
        raise EngineMissing(message, hint=hint) from None

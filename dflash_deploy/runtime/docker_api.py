"""A client of Docker's API, for the Docker that the `docker` command uses."""

from __future__ import annotations

import docker
from docker.errors import DockerException

from dflash_deploy.errors import EngineMissing
from dflash_deploy.host import container_engine
from dflash_deploy.host.containers import LONGEST_WORDS


def docker_client() -> docker.DockerClient:
    """Return a client of Docker's API. Raises EngineMissing if Docker does not respond."""
    engine = container_engine()
    try:
        return docker.DockerClient(base_url=engine.host or None)
    except DockerException as problem:
        raise EngineMissing(
            f"Docker's API at {engine.host} does not respond: {str(problem)[:LONGEST_WORDS]}",
            hint="check `docker context inspect` and DOCKER_HOST",
        ) from None

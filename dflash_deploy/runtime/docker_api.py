"""The container engine's API, of the engine that the `docker` command uses."""

from __future__ import annotations

import docker
from docker.errors import DockerException

from dflash_deploy.errors import EngineMissing
from dflash_deploy.host import find_container_engine


def docker_client() -> docker.DockerClient:
    """A client of that engine. Raises EngineMissing where none answers."""
    engine = find_container_engine()
    try:
        if engine is None:
            raise DockerException
        return docker.DockerClient(base_url=engine.host or None)
    except DockerException:
        raise EngineMissing("no container engine answers", hint="start Docker (`systemctl start docker`)") from None

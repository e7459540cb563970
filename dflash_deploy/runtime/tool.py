"""A command in a container of its own: no network, no capabilities, nothing writable but its aim."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from docker.errors import DockerException, ImageNotFound
from docker.types import Mount

from dflash_deploy.errors import ConversionFailed, EngineMissing
from dflash_deploy.runtime.client import docker_client
from dflash_deploy.runtime.protocol import Narrate


def run_tool(image: str, command: tuple[str, ...], mounts: Mapping[str, tuple[Path, bool]], narrate: Narrate) -> None:
    """Run the image's entry point with a command until it ends, handing on its lines.

    `mounts` maps a path of the container to one of this machine and whether it may be written. Raises EngineMissing
    where no container engine answers or the image cannot be fetched, and ConversionFailed where the command fails.
    """
    client = docker_client()
    try:
        client.images.get(image)
    except ImageNotFound:
        narrate(f"fetching {image}")
        try:
            client.images.pull(image)
        except DockerException as problem:
            raise EngineMissing(
                f"the image {image} could not be fetched: {_first_line(problem)}",
                hint="see to the network, or name an image that this machine has: --image IMAGE",
            ) from None
    tail: deque[str] = deque(maxlen=20)
    container = client.containers.create(
        image,
        list(command),
        mounts=[
            Mount(inside, str(place.resolve()), type="bind", read_only=not writable)
            for inside, (place, writable) in mounts.items()
        ],
        user=f"{os.getuid()}:{os.getgid()}",
        environment={"HOME": "/tmp", "USER": "dflash", "HF_HUB_OFFLINE": "1"},  # noqa: S108 - the container's own
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": ""},  # noqa: S108 - the container's own
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        init=True,
    )
    try:
        container.start()
        for raw in container.logs(stream=True, follow=True):
            if line := raw.decode("utf-8", "replace").strip():
                tail.append(line)
                narrate(line)
        status = container.wait()["StatusCode"]
    except DockerException as problem:
        raise ConversionFailed(f"{command[0]} could not run in {image}: {_first_line(problem)}", hint=_HINT) from None
    finally:
        with contextlib.suppress(DockerException):
            container.remove(force=True)
    if status:
        said = tail[-1] if tail else "it said nothing"
        raise ConversionFailed(f"{command[0]} ended with {status}: {said}", hint=_HINT, detail="\n".join(tail))


_HINT = "read the lines above; another release of the tool may do it: --image IMAGE"


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]

"""A container's log from Docker's API in bounded memory.

docker-py returns the whole log at once, or a stream that waits without a timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import requests
from docker.errors import create_api_error_from_http_exception

from dflash_deploy.runtime.log_file import shortened

if TYPE_CHECKING:
    import docker

_BLOCK = 64 * 1024
_HEADER = 8
"""Bytes before each frame: the stream, three zeros, and the frame's size (Docker's API, ContainerAttach)."""


def read_container_log(api: docker.APIClient, identity: str, *, since: int | None, tty: bool) -> bytes:
    """Return the log of a container with time stamps; of a long one the beginning and the end.

    `since` is in seconds since 1970. A container with a terminal (`tty`) has no frames. Raises docker.errors.APIError,
    and OSError if the connection breaks or pauses for longer than the client's timeout.
    """
    asked: dict[str, int | str] = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": 0, "tail": "all"}
    if since is not None:
        asked["since"] = since
    url = f"{api.base_url}/v{api.api_version}/containers/{identity}/logs"
    with closing(api.get(url, params=asked, timeout=api.timeout, stream=True)) as answer:
        try:
            answer.raise_for_status()
        except requests.HTTPError as problem:
            create_api_error_from_http_exception(problem)
        chunks = answer.iter_content(_BLOCK)
        return shortened(chunks if tty else frames_of(chunks))


def frames_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of the frames that chunks of any size contain, without their headers."""
    header, left = b"", 0
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            if left:
                part = chunk[at : at + left]
                left -= len(part)
                yield part
            else:
                part = chunk[at : at + _HEADER - len(header)]
                header += part
                if len(header) == _HEADER:
                    left, header = int.from_bytes(header[4:], "big"), b""
            at += len(part)

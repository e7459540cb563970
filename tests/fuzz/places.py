"""A directory for the file of each input, and answers of servers without a socket."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx

from dflash_deploy.intake.answers import new_client
from tests.fuzz.judge import Lost


@cache
def place() -> Path:
    """A directory of this process, in memory if the system has such a place."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="dflash-fuzz-", dir=shared if shared.is_dir() else None))


def put(name: str, content: bytes) -> Path:
    """Write a file below `place()`, and return its path."""
    file = place() / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def is_kept(file: Path, content: bytes) -> None:
    """Raise Lost unless a file is unchanged, or was set aside unchanged."""
    for one in (file, file.with_name(f"{file.name}.damaged")):
        if one.is_file() and one.read_bytes() == content:
            one.unlink()
            return
    raise Lost(f"{file.name} is neither kept nor set aside")


def reply(content: bytes) -> httpx.Response:
    """The answer that an input describes: a status, headers, an empty line, and the body in some pieces."""
    head, _, body = content.partition(b"\n\n")
    status, *lines = head.split(b"\n")
    headers = [(name, value.strip()) for name, found, value in (line.partition(b":") for line in lines) if found]
    code = int(status) if status.isdigit() and len(status) == 3 else 200
    return httpx.Response(max(code, 200), headers=headers, stream=_Pieces(body))


class _Pieces(httpx.SyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        step = max(len(self._body) // 3, 1)
        for start in range(0, len(self._body), step):
            yield self._body[start : start + step]


def answering(content: bytes) -> Callable[..., httpx.Client]:
    """A function like `new_client`, whose clients get the same answer to every request."""
    transport = httpx.MockTransport(lambda request: reply(content))
    return partial(new_client, transport=transport)


def answer(body: bytes, status: int = 200, headers: Mapping[str, Any] | None = None) -> bytes:
    """An input for `reply`."""
    lines = [str(status), *(f"{name}: {value}" for name, value in (headers or {}).items())]
    return "\n".join(lines).encode("utf-8", "surrogatepass") + b"\n\n" + body

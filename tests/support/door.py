"""The gateway's door in front of tests.support.unix_engine, as a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.commands import HANGS
from tests.support.parsers.fetch import REPOSITORY
from tests.support.ports import free_port

KEY, FURTHER = "the-first-key-0123456789", "another-key-0123456789"


@dataclass(frozen=True)
class Door:
    """The door's process, the URL of the endpoint, and a directory of the test."""

    process: subprocess.Popen[str]
    url: str
    place: Path

    def request(self, method: str, path: str, key: str = KEY, **others: object) -> httpx.Response:
        """A request with a key; an empty one sends none."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.request(method, self.url + path, headers=headers, timeout=HANGS, **others)  # type: ignore[arg-type]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the engine."""
        read: dict[str, str] = json.loads((self.place / "environment").read_text())
        return read


def start(place: Path, port: int, *, under: Sequence[str] = (), **settings: str) -> subprocess.Popen[str]:
    """The door's process, which may still refuse to start. `settings` are further variables of its environment.

    `under` is the command of a program that runs it.
    """
    (place / "env").write_text(f"VLLM_API_KEY={KEY}\nDFLASH_API_KEYS={FURTHER}\nHF_TOKEN=hf_of_the_hub_0123456789\n")
    ours = {"DFLASH_SECRETS_FILE": str(place / "env"), "DFLASH_PORT": str(port), "MAX_BODY_MIB": "1", **settings}
    door = (*under, sys.executable, "-m", "dflash_deploy.serve.door", "llamacpp")
    return subprocess.Popen(
        [*door, sys.executable, "-m", "tests.support.unix_engine"],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(place), "SEEN": str(place / "seen"), **ours},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(said: Callable[[], bool]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + HANGS
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def opened(place: Path, *, under: Sequence[str] = (), **settings: str) -> Iterator[Door]:
    """A door whose engine answers; for the arguments see `start`."""
    port = free_port()
    with start(place, port, under=under, **settings) as process:
        made = Door(process, f"http://127.0.0.1:{port}", place)

        def listens() -> bool:
            assert process.poll() is None, process.communicate()[0]
            try:
                return made.request("GET", "/health", key="").status_code == 200
            except httpx.TransportError:
                return False

        until(listens)
        try:
            yield made
        finally:
            process.kill()

"""A registry of images on this machine: Debian's docker-registry, installed where it is absent."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.commands import apt_install, is_installed, wait_until
from tests.support.ports import free_port

PROGRAM = "docker-registry"


@contextmanager
def registry(state: Path) -> Iterator[str]:
    """Run one for as long as the block; yields HOST:PORT. An engine takes a registry on loopback without TLS."""
    if not is_installed(PROGRAM):
        apt_install(PROGRAM)
    port = free_port()
    config = state / "registry.yml"
    config.write_text(
        "version: 0.1\n"
        f"storage: {{filesystem: {{rootdirectory: {state / 'data'}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with (state / "registry.log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, "serve", str(config)], stdout=log, stderr=log)
    try:
        if not wait_until(lambda: _answers(port), 300):
            raise RuntimeError(f"{PROGRAM} does not answer: {(state / 'registry.log').read_text()[-500:]}")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False

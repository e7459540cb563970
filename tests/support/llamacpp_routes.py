"""Which routes of llama.cpp's server an endpoint answers without its key."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx

from dflash_deploy.assets import asset
from dflash_deploy.serve.engines.llamacpp import ROUTES
from tests.support.commands import HANGS, wait_until
from tests.support.ports import free_port

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")

KEY = "only-for-this-test-0123456789"


def opened(url: str) -> set[tuple[str, str]]:
    """Each method and path that answers anything but 401 to a request without a key."""
    with httpx.Client(base_url=url, timeout=HANGS, trust_env=False) as client:
        return {
            (method, path)
            for method in METHODS
            for path in sorted({path for _, path in ROUTES})
            if client.request(method, path).status_code != 401
        }


def routed(url: str) -> set[tuple[str, str]]:
    """The routes that a server with `KEY` has: those which are not answered as an unknown path is."""
    with httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=HANGS, trust_env=False
    ) as client:
        return {
            (method, path)
            for method, path in ROUTES
            if (answer := client.request(method, path)).status_code != 404 or "File Not Found" not in answer.text
        }


@contextmanager
def released(command: Sequence[str]) -> Iterator[str]:
    """The address of a server with the tiny target as its project releases it, with a key and without our gateway."""
    port = free_port()
    told = ("--model", str(asset("models/tiny/gguf/target.gguf")), "--host", "127.0.0.1", "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [*command, *told, "--metrics", "--ctx-size", "512", "--parallel", "1", "--threads", "1"],
        env={**os.environ, "LLAMA_API_KEY": KEY},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert wait_until(lambda: process.poll() is not None or _ready(url), HANGS)
            assert process.poll() is None
            yield url
        finally:
            process.kill()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=HANGS, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False

"""SGLang's released HTTP server without its engine: `python -m tests.support.sglang_server ROUTES PORT ARGUMENTS`.

It runs as in the image, by `dflash_deploy.serve.engines.sglang_server`, and on PORT a second time without the gateway,
as released: with SGLang's own check of a key. The arguments, the application with all its routes and middlewares, and
the web server are SGLang's own. The engine's processes are replaced by objects that answer nothing, and so are packages
that this project does not install. The routes are written to the file ROUTES.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import httpx
import uvicorn

from dflash_deploy.serve.engines import sglang_server
from dflash_deploy.serve.engines.installed import CPU_SITE
from tests.support.commands import wait_until
from tests.support.parsers.absent import stub_absent
from tests.support.parsers.fetch import REPOSITORY, fetched
from tests.support.ports import free_port
from tests.support.routes import routes_of

HANGS = 600.0  # seconds after which something counts as hung


@dataclass(frozen=True)
class Running:
    """A running server: its address here and as released, its routes (method and path), its log, its process."""

    url: str
    released: str
    routes: frozenset[tuple[str, str]]
    log: Path
    pid: int


@contextmanager
def running(directory: Path, **environment: str) -> Iterator[Running]:
    """SGLang's server, with the keys of this environment, as long as the block runs."""
    port, released, log, routes = free_port(), free_port(), directory / "log", directory / "routes.json"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG_", "VLLM_"))}
    paths = os.pathsep.join(map(str, [fetched("sglang-0.5.23"), CPU_SITE, REPOSITORY]))
    with log.open("wb") as written:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.sglang_server", str(routes), str(released)),
                *("--model-path", "dummy", "--host", "127.0.0.1", "--port", str(port), "--enable-metrics"),
            ],
            env={
                **inherited,
                "PYTHONPATH": paths,
                "PYTHONSAFEPATH": "1",
                "HF_HUB_OFFLINE": "1",
                **environment,
            },
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        here, there = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{released}"
        assert wait_until(lambda: process.poll() is not None or (_listens(here) and _listens(there)), HANGS)
        assert process.poll() is None, log.read_text()[-3000:]
        listed = frozenset((method, path) for method, path in json.loads(routes.read_text()))
        yield Running(here, there, listed, log, process.pid)
    finally:
        process.kill()
        process.wait()


def _listens(url: str) -> bool:
    try:
        httpx.get(f"{url}/nowhere", timeout=HANGS)
    except httpx.TransportError:
        return False
    return True


class _NoEngine:
    """What SGLang's server knows of an engine that is up and idle. Made before the gateway is in front."""

    def __init__(self, routes: Path, port: int) -> None:
        self._server: Any = importlib.import_module("sglang.srt.entrypoints.http_server")
        # not before what is absent is replaced: it looks for orjson
        self._without_gateway = importlib.import_module("fastapi").FastAPI.build_middleware_stack
        self._routes, self._port = routes, port

    def replace(self) -> None:
        """Replace the engine's processes, and the requests with which the server warms them up."""
        self._server.Engine._launch_subprocesses = self._launched
        self._server._wait_and_warmup = self._serve_as_released
        # it wants the configuration of a model
        self._server.OpenAIServingTranscription = MagicMock()

    def _launched(self, server_args: Any, **_: object) -> tuple[object, ...]:
        importlib.import_module("sglang.srt.runtime_context").publish(server_args, role="tokenizer")
        # as the start of the engine's processes does
        importlib.import_module("sglang.srt.utils").set_prometheus_multiproc_dir()
        tokenizer = MagicMock(gracefully_exit=False, is_generation=True, last_receive_tstamp=float("inf"))
        tokenizer.get_internal_state = AsyncMock(return_value=[])
        tokenizer.server_args = server_args
        return tokenizer, MagicMock(), MagicMock(), MagicMock(scheduler_infos=[{}]), MagicMock(), None

    def _serve_as_released(self, **_: object) -> None:
        app = self._server.app
        self._routes.write_text(json.dumps(sorted(set(routes_of(app)))))
        uvicorn.run(self._without_gateway(app), port=self._port, lifespan="off", log_config=None)


def main(routes: str, port: str, *arguments: str) -> None:
    """Serve until the process is killed."""
    stub_absent()
    _NoEngine(Path(routes), int(port)).replace()
    sys.exit(sglang_server.main(list(arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What vLLM's server answers at each of its routes, with and without the key, asked in a process that loads no model.

The server's application is made by vLLM's own `build_app` from a command line, as `vllm serve` does once the engine is
there; without one a route that is reached fails with 500, which is enough to know that it was reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from dflash_deploy.serve.engines.installed import CPU_SITE
from tests.support.parsers.fetch import REPOSITORY

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")

ELSEWHERE = ("/", "/favicon.ico", "/v9/of/a/later/release", "/health/", "/metrics/x")  # paths that no route has


@dataclass(frozen=True)
class Asked:
    """One way to build the server: the arguments after `vllm serve MODEL`, what the model can do, further variables."""

    arguments: Sequence[str]
    tasks: Sequence[str] = ("generate",)
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Answered:
    """The HTTP status of one request without the key and with it.

    `routed`: the router lists this method and path. `described`: /openapi.json does.
    """

    method: str
    path: str
    routed: bool
    described: bool
    without: int
    with_key: int

    @property
    def route(self) -> tuple[str, str]:
        """Method and path."""
        return self.method, self.path


def answers(asked: Sequence[Asked], key: str) -> list[list[Answered]]:
    """For each way to build the server what it answers, by any method, at all its routes and a few other paths."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.routes"],
        input=json.dumps([asdict(one) for one in asked]),
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},
            "PYTHONPATH": os.pathsep.join(map(str, [CPU_SITE, REPOSITORY])),
            "PYTHONSAFEPATH": "1",
            "VLLM_API_KEY": key,
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_LOGGING_LEVEL": "CRITICAL",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    return [[Answered(**answer) for answer in one] for one in said]


def routes_of(app: Any) -> Iterator[tuple[str, str]]:
    """Method and path of each HTTP route of the router, a word in the place of each parameter."""
    for route in app.routes:
        # an application below a path has no methods of its own
        for method in getattr(route, "methods", None) or ("GET",):
            yield method, _filled(route.path)


def _filled(path: str) -> str:
    return re.sub(r"{\w+(:\w+)?}", "x", path)


def _build(asked: Asked) -> Any:
    launchers = importlib.import_module("vllm.entrypoints.launchers.app")
    parsing = importlib.import_module("vllm.utils.argparse_utils")
    arguments = importlib.import_module("vllm.entrypoints.launchers.cli_args")
    parsed = arguments.make_arg_parser(parsing.FlexibleArgumentParser()).parse_args(list(asked.arguments))
    return launchers.build_app(parsed, tuple(asked.tasks), None)


async def _survey(app: Any, key: str) -> list[Answered]:
    listed = set(routes_of(app))
    schema = {(method.upper(), _filled(path)) for path, methods in app.openapi()["paths"].items() for method in methods}
    found = []
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        for path in sorted({path for _, path in listed} | set(ELSEWHERE)):
            for method in METHODS:
                statuses = [
                    (await client.request(method, path, headers=headers)).status_code
                    for headers in ({}, {"Authorization": f"Bearer {key}"})
                ]
                found.append(Answered(method, path, (method, path) in listed, (method, path) in schema, *statuses))
    return found


def main() -> None:
    """Answer for the servers that standard input describes."""
    key, found = os.environ["VLLM_API_KEY"], []
    for described in json.load(sys.stdin):
        asked = Asked(**described)
        os.environ.update(asked.environment)
        # what vLLM prints by itself is not the answer
        with contextlib.redirect_stdout(sys.stderr):
            found.append([asdict(one) for one in asyncio.run(_survey(_build(asked), key))])
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""What the gateway costs, with its keys and its counting by name: the same server with it and without, in turns."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.rows import Row
from benchmarks.start import engine_by_hand
from dflash_deploy.assets import asset
from dflash_deploy.bench.figures import at_concurrency
from dflash_deploy.bench.workload import Prompt, load_prompts
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.plan.command import engine_command
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.engines.vllm import MIDDLEWARE
from dflash_deploy.serve.gateway.asgi import App, Receive, Scope, Send
from dflash_deploy.serve.gateway.auth import DenyByDefault
from tests.support.cli import dflash
from tests.support.parsers.fetch import REPOSITORY
from tests.support.ports import free_port

CONCURRENCY = 8
REQUESTS = 96
REPEATS = 5
WITHOUT = "/without-the-check"

Ask = Callable[[Endpoint, Prompt], int]  # sends one request; returns what the answer has, in the unit of the row


class Detour:
    """The check of all routes, and a way around it: with the prefix, only the engine's own check applies."""

    def __init__(self, app: App) -> None:
        self._app, self._locked = app, DenyByDefault(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and scope["path"].startswith(WITHOUT):
            await self._app({**scope, "path": scope["path"].removeprefix(WITHOUT)}, receive, send)
        else:
            await self._locked(scope, receive, send)


def rows() -> Iterator[Row]:
    """Whole answers, and answers in chunks."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    prompts = load_prompts(asset("models/tiny/prompts.jsonl"), "long")
    with tempfile.TemporaryDirectory() as folder:
        options = ("--profile", "cpu", "--runtime", "native", "--port", str(free_port()))
        dflash("init", *options, at=Path(folder)).succeeded()
        deployment = Deployment(Path(folder))
        arguments = [word.replace(MIDDLEWARE, "benchmarks.lock.Detour") for word in engine_command(plan_of(deployment))]
        with engine_by_hand(deployment, arguments[1:]) as endpoint:
            urls = {"without": f"{endpoint.url}{WITHOUT}", "with": endpoint.url}
            connect = {name: _connector(url, deployment, endpoint.model) for name, url in urls.items()}
            for what, ask, unit in (
                ("whole answers", _whole, "tokens/s"),
                ("answers in chunks", _in_chunks, "tokens/s"),
                ("chunks without usage", _in_chunks_without_usage, "characters/s"),
            ):
                rates: dict[str, list[float]] = {"without": [], "with": []}
                for turn in range(-1, REPEATS):
                    # each is first equally often, because the first one affects the next
                    for name in sorted(rates, reverse=turn % 2 == 0):
                        rate = _round(connect[name], prompts, ask)
                        # the first turn warms up
                        rates[name] += [rate] if turn >= 0 else []
                without, with_lock = median(rates["without"]), median(rates["with"])
                yield Row(f"{what}, {at_concurrency(CONCURRENCY)}", without, with_lock, unit, "0.98 or more", REPEATS)


def _connector(url: str, deployment: Deployment, model: str) -> Callable[[], Endpoint]:
    return lambda: Endpoint(url, deployment.key, model)


def _whole(endpoint: Endpoint, prompt: Prompt) -> int:
    return endpoint.complete(prompt.body(endpoint.model)).completion_tokens


def _in_chunks(endpoint: Endpoint, prompt: Prompt) -> int:
    return endpoint.stream(prompt.messages[-1].content, max_tokens=prompt.max_tokens).completion_tokens


def _in_chunks_without_usage(endpoint: Endpoint, prompt: Prompt) -> int:
    """A stream that does not ask for its usage: the gateway asks for it, and takes it out again."""
    with endpoint.events({**prompt.body(endpoint.model), "stream": True}) as events:
        chunks = (choice.delta.content for event in events if event for choice in event.choices or ())
        return sum(len(text) for text in chunks if text)


def _round(connect: Callable[[], Endpoint], prompts: list[Prompt], ask: Ask) -> float:
    """What the answers have, per second at `CONCURRENCY`, from the first request to the last answer."""

    def client(number: int) -> int:
        with connect() as endpoint:
            asked = [prompts[index % len(prompts)] for index in range(number, REQUESTS, CONCURRENCY)]
            return sum(ask(endpoint, prompt) for prompt in asked)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        started = time.monotonic()
        received = sum(pool.map(client, range(CONCURRENCY)))
        return received / (time.monotonic() - started)

"""docs/reference/open-routes.md is what the engines do: asked without a key, as released and behind the gateway."""

import asyncio
import sys

from dflash_deploy.serve.engines.installed import WHEEL_SERVER
from dflash_deploy.serve.engines.llamacpp import ROUTES
from dflash_deploy.serve.gateway.asgi import Message, Receive, Scope, Send
from dflash_deploy.serve.gateway.auth import DenyByDefault
from tests.support import llamacpp_routes, sglang_routes
from tests.support.fork import fork_or_skip
from tools.reference.open_routes import BUUN, HERE, LLAMACPP, SGLANG, Surveyed


def surveyed(url: str, expected: Surveyed) -> None:
    """A released server has as many routes, and answers those of the page without its key."""
    routes, opened = llamacpp_routes.routed(url), llamacpp_routes.opened(url)
    assert len(routes) == expected.routes
    # an open path is open to every method; these are those that have a route
    assert {route for route in opened if route in routes} == expected.released
    # its answer to a browser's question before a request, on each path
    assert {path for method, path in opened if method == "OPTIONS"} == {path for _, path in ROUTES}


def test_what_the_released_llama_cpp_leaves_open() -> None:
    with llamacpp_routes.released([sys.executable, "-m", WHEEL_SERVER]) as url:
        surveyed(url, LLAMACPP)


def test_what_the_fork_leaves_open() -> None:
    with llamacpp_routes.released([str(fork_or_skip("llama-server"))]) as url:
        surveyed(url, BUUN)


def test_what_the_released_sglang_leaves_open() -> None:
    routes = sglang_routes.routes()
    assert len(routes) == SGLANG.routes
    assert sglang_routes.left_open(routes) == SGLANG.released


def test_the_gateway_opens_one_route_of_every_engine() -> None:
    routes = {*ROUTES, *sglang_routes.routes()}
    assert {route for route in routes if admitted(*route)} == HERE


def admitted(method: str, path: str) -> bool:
    """Whether the gateway passes on a request without a key."""
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["path"])

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        assert message.get("status") in {None, 401}

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    asyncio.run(DenyByDefault(app, {"VLLM_API_KEY": llamacpp_routes.KEY})(scope, receive, send))
    return bool(seen)

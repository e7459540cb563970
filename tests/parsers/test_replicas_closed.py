"""Without a key, with an unknown one, and with one of a wrong scope: every route of the router and of its engines."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import httpx

from dflash_deploy.serve.engines.llamacpp import ROUTES as ENGINE
from dflash_deploy.serve.gateway.keys import INFERENCE, LIVENESS, opens
from dflash_deploy.serve.router.files import read_keys
from dflash_deploy.serve.router.values import ROUTES as CLOSED
from tests.support import router_routes
from tests.support.router_routes import OPEN, Route
from tests.support.two_engines import HANGS, door, engine_tokens, engines, keys, router

EVERY = tuple(dict.fromkeys((*router_routes.ROUTES, *ENGINE)))
"""All routes of SMG and of llama.cpp: SMG passes some on that it does not know, and an engine may get any."""

NO_KEY: tuple[str | None, ...] = (None, "a-key-that-nobody-has")


def answered(url: str, key: str | None, routes: Iterable[Route] = EVERY) -> dict[Route, int]:
    """The status of each route for a request that would generate if the key opened it."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    # a server may close a connection whose request it answered before it had read the body
    anew = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=url, headers=headers, timeout=HANGS, trust_env=False, limits=anew) as client:
        return {
            (method, path): client.request(method, path, json=_body(path) if method == "POST" else None).status_code
            for method, path in routes
        }


def _body(path: str) -> dict[str, object]:
    if path == "/v1/responses":
        return {"model": "tiny", "input": "Count.", "max_output_tokens": 1}
    chat = {"messages": [{"role": "user", "content": "Count."}], "prompt": "1 2", "max_tokens": 1, "n_predict": 1}
    text = {"input": "1 2", "text": "1 2", "content": "1 2", "tokens": [1], "query": "1", "documents": ["2"]}
    return {"model": "tiny", **chat, **text}


def generated(directory: Path) -> Counter[str]:
    return sum((engine_tokens(url, directory) for url in engines(directory)), Counter[str]())


def test_these_are_the_routes_of_the_router() -> None:
    assert router_routes.is_installed()


def test_the_open_routes_of_the_router_are_closed_at_the_door() -> None:
    assert {path for _, path in OPEN} - INFERENCE <= {*CLOSED, LIVENESS}


def test_an_engine_opens_its_liveness_route_to_requests_without_a_key(two_engines: Path) -> None:
    for url in engines(two_engines):
        for key in NO_KEY:
            found = answered(url, key)
            assert {route for route, status in found.items() if status != 401} == {("GET", "/health")}


def test_the_door_opens_its_liveness_route_to_requests_without_a_key(two_engines: Path) -> None:
    for key in NO_KEY:
        found = answered(door(two_engines), key)
        assert {route for route, status in found.items() if status < 400} == {("GET", "/health")}


def test_the_router_generates_nothing_without_a_key(two_engines: Path) -> None:
    before = generated(two_engines)
    for key in (*NO_KEY, read_keys(two_engines / ".dflash" / "router" / "keys.json").probe):
        found = answered(router(two_engines), key)
        assert {route for route, status in found.items() if status < 400} == OPEN
    assert generated(two_engines) == before


def test_a_key_of_another_scope_opens_nothing_of_it(two_engines: Path) -> None:
    probe = read_keys(two_engines / ".dflash" / "router" / "keys.json").probe
    with keys(two_engines, "quinn", limits=("--scope", "metrics")) as (quinn,):
        before = generated(two_engines)
        for url in engines(two_engines):
            for key in (quinn, probe):
                found = answered(url, key)
                allowed = {("GET", "/health"), ("GET", "/metrics")} & set(EVERY)
                assert {route for route, status in found.items() if status != 403} == allowed
        found = answered(router(two_engines), quinn)
        assert {route for route, status in found.items() if status < 400} == OPEN
        assert generated(two_engines) == before


def test_a_key_that_generates_opens_no_route_of_the_owner(two_engines: Path) -> None:
    with keys(two_engines, "rosa") as (rosa,):
        closed = [route for route in EVERY if not opens("infer", *route) and route != ("GET", "/health")]
        for url in engines(two_engines):
            assert set(answered(url, rosa, closed).values()) == {403}
        found = answered(router(two_engines), rosa, closed)
        assert {route for route, status in found.items() if status < 400} == OPEN - {("GET", "/health")} - _of_clients()


def _of_clients() -> set[Route]:
    return {route for route in OPEN if opens("infer", *route)}

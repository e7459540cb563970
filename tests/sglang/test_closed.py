"""The running SGLang is closed: without a key nothing is answered but whether it lives."""

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.sglang.conftest import FURTHER_KEY
from tests.support.cli import dflash
from tests.support.server import Server

LIVENESS = "/health"


@pytest.fixture
def client(drafting: Server) -> Iterator[httpx.Client]:
    with (
        drafting.connect() as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=300, trust_env=False) as client,
    ):
        yield client


def test_no_route_of_the_running_server_opens_without_a_key(drafting: Server, client: httpx.Client) -> None:
    described = client.get("/openapi.json", headers={"x-api-key": drafting.key}).json()["paths"]
    routes = [(method.upper(), re.sub(r"{\w+(:\w+)?}", "x", path)) for path, one in described.items() for method in one]
    assert len(routes) > 60
    for method, path in [*routes, ("GET", "/metrics"), ("POST", "/v9/later"), ("OPTIONS", "/v1/models")]:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
            status = client.request(method, path, headers=headers).status_code
            assert (status == 401) is (path != LIVENESS), (method, path, status)


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
def test_each_key_opens_the_routes_of_the_apis(drafting: Server, client: httpx.Client, header: str) -> None:
    for key in (drafting.key, FURTHER_KEY):
        headers = {header: f"Bearer {key}" if header == "Authorization" else key}
        assert client.get("/v1/models", headers=headers).json()["data"][0]["id"] == "tiny"


def test_the_key_is_in_env_and_nowhere_else(drafting: Server) -> None:
    assert drafting.places_of_the_key() == [drafting.directory / ".env"]
    for words in (["logs"], ["status"], ["plan", "--json"]):
        ran = dflash(*words, at=drafting.directory)
        assert drafting.key not in ran.out + ran.err, words


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/generate"])
def test_nothing_is_fetched_that_a_client_names(drafting: Server, client: httpx.Client, path: str) -> None:
    url = "http://127.0.0.1:9/a.png"
    image = {"type": "image_url", "image_url": {"url": url}}
    source = {"type": "image", "source": {"type": "url", "url": url}}
    body = {"model": "tiny", "max_tokens": 9, "text": "<image>", "image_data": url}
    body["messages"] = [{"role": "user", "content": [source if path.endswith("messages") else image]}]
    said = client.post(path, json=body, headers={"x-api-key": drafting.key})
    assert said.status_code == 400
    assert "image_url_refused" in said.text

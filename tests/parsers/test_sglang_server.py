"""SGLang's real HTTP server, released on the package index, behind the gateway: nothing but /health is open."""

import http.client
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import attacked
from tests.support.attacked import Endpoint
from tests.support.caddy import in_front_of
from tests.support.routes import METHODS
from tests.support.sglang_server import HANGS, Running, running

KEY, FURTHER_KEY = "only-for-this-test-0123456789", "the-key-of-another-client-01"
LIVENESS = {("GET", "/health"), ("HEAD", "/health")}
ELSEWHERE = ("/", "/favicon.ico", "/v9/of/a/later/release", "/health/", "/healthz", "/readyz", "/metrics/x")

# The methods that a web server passes on; any other word it refuses itself.
BY_WEB_SERVERS = [method for method in METHODS if method != "BREW"]

Route = tuple[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The server with two keys and a body limit of 4 MiB."""
    directory = tmp_path_factory.mktemp("sglang")
    with running(directory, VLLM_API_KEY=KEY, DFLASH_API_KEYS=FURTHER_KEY, MAX_BODY_MIB="4") as server:
        yield server


def paths_of(server: Running) -> list[str]:
    return sorted({path for _, path in server.routes} | set(ELSEWHERE))


def opened(url: str, paths: list[str]) -> set[Route]:
    """The methods and paths that are not refused without a key."""
    with httpx.Client(base_url=url, timeout=HANGS, trust_env=False) as client:
        return {
            (method, path)
            for path in paths
            for method in BY_WEB_SERVERS
            if client.request(method, path).status_code != 401
        }


def test_no_route_opens_without_a_key_by_any_method(served: Running) -> None:
    assert len(served.routes) > 100
    assert ("GET", "/metrics") in served.routes
    assert opened(served.url, paths_of(served)) == LIVENESS


def test_every_route_opens_with_either_key(served: Running) -> None:
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": FURTHER_KEY}):
        with httpx.Client(base_url=served.url, headers=headers, timeout=HANGS, trust_env=False) as client:
            # HEAD reaches the router without an effect
            assert [path for path in paths_of(served) if client.head(path).status_code == 401] == []
            # SGLang's own counters, which are in files of its processes
            assert "# HELP sglang:" in client.get("/metrics").text


def status(url: str, method: str, path: str) -> int:
    return httpx.request(method, url + path, timeout=HANGS, trust_env=False).status_code


def test_what_the_released_server_leaves_open(served: Running) -> None:
    listed = sorted(path for method, path in served.routes if method == "GET")
    opened = {path for path in listed if status(served.released, "GET", path) != 401}
    assert opened == {"/health", "/health_generate", "/ready", "/metrics"}
    # its check takes any path that begins so, and every preflight
    for method, path in (("GET", "/healthz"), ("POST", "/readyz"), ("OPTIONS", "/v1/models")):
        assert status(served.released, method, path) != 401
        assert status(served.url, method, path) == 401


def handshake(url: str, **headers: str) -> int:
    """The status of a websocket's handshake: 101 if it is opened."""
    parsed = httpx.URL(url)
    connection = http.client.HTTPConnection(parsed.host, parsed.port, timeout=HANGS)
    try:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        key = {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        connection.request("GET", "/v1/realtime", headers=upgrade | key | headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_websocket_is_opened_with_a_key_only(served: Running) -> None:
    # as released SGLang checks no key of a websocket; without an engine its handler fails
    reached = handshake(served.released)
    assert reached not in {401, 403}
    assert handshake(served.url) in {401, 403}
    assert handshake(served.url, Authorization="Bearer wrong") in {401, 403}
    assert handshake(served.url, Authorization=f"Bearer {FURTHER_KEY}") == reached


def test_a_body_above_the_limit_is_refused(served: Running) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=HANGS, trust_env=False) as client:
        assert client.post("/v1/chat/completions", content=b" " * (5 << 20)).status_code == 413
        assert client.post("/v1/chat/completions", content=b" " * (1 << 19)).status_code != 413


def test_the_gateway_holds_under_attack(served: Running) -> None:
    attacked.holds(Endpoint(served.url, KEY), served.pid, half=1500, route="/metrics", mib=4)


def test_it_holds_under_attack_behind_caddy(served: Running, tmp_path: Path) -> None:
    with in_front_of(Endpoint(served.url, KEY), tmp_path, mib=4) as behind:
        attacked.holds(behind, served.pid, half=300, mib=4)


def test_no_key_of_the_endpoint_is_told(served: Running) -> None:
    with httpx.Client(
        base_url=served.url, headers={"x-api-key": FURTHER_KEY}, timeout=HANGS, trust_env=False
    ) as client:
        told = client.get("/server_info")
    # SGLang tells its arguments: the key among them is its own
    assert told.json()["api_key"] not in {"", None, KEY, FURTHER_KEY}
    arguments = Path(f"/proc/{served.pid}/cmdline").read_text()
    for secret in (KEY, FURTHER_KEY, told.json()["api_key"]):
        assert secret not in served.log.read_text()
        assert secret not in arguments
    assert KEY not in told.text

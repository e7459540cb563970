"""The real Caddy with images/door/Caddyfile, in front of the real gateway, over TLS."""

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from dflash_deploy.assets import asset
from dflash_deploy.serve.api_keys import ApiKey
from dflash_deploy.serve.gateway.keys import BELOW, INFERENCE, LIVENESS, document_of
from tests.support.caddy import AUTHORITY, Published, program, published, running
from tests.support.commands import HANGS
from tests.support.door import KEY, Door, opened, until
from tests.support.ports import free_port, http_port

ALICE = "key-of-alice-0123456789"
MIB = 1 << 20
# Far above the limit of 1 MiB of the gateway, and above all buffers between client and gateway.
LARGE = b"x" * (8 * MIB)


class Edge:
    """A gateway, and Caddy in front of it. Its host is 127.0.0.1, with Caddy's own authority."""

    def __init__(self, gateway: Door, caddy: Published, plain_url: str) -> None:
        self.gateway, self.caddy, self.url, self.plain_url = gateway, caddy, caddy.url, plain_url

    def client(self, key: str = ALICE, *, http2: bool = True) -> httpx.Client:
        """A client that trusts the certificate; an empty key sends none."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        trust = ssl.create_default_context(cafile=str(self.caddy.root))
        return httpx.Client(base_url=self.url, headers=headers, verify=trust, http2=http2, timeout=HANGS)

    def logged(self, path: str, status: int) -> dict[str, object]:
        """The newest line of the access log for a path, when it is there."""
        found: list[dict[str, object]] = []

        def there() -> bool:
            lines = map(json.loads, self.caddy.log.read_text().splitlines())
            found[:] = [line for line in lines if (line["request"]["uri"], line["status"]) == (path, status)]
            return bool(found)

        until(there)
        return found[-1]


ORIGIN = "https://page.example.com"


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    place = tmp_path_factory.mktemp("edge")
    keys = place / "keys.json"
    keys.write_text(document_of([ApiKey("alice", ALICE, "infer")]))
    port = free_port()
    told = {"MAX_BODY_MIB": "1", "HTTP_PORT": str(port)}
    with (
        opened(place, DFLASH_KEYS_FILE=str(keys)) as gateway,
        published(place / "caddy", gateway.url, **told) as caddy,
    ):
        yield Edge(gateway, caddy, f"http://127.0.0.1:{port}")


def code(answer: httpx.Response) -> str:
    """The code of an error in OpenAI's format."""
    assert answer.headers["content-type"].startswith("application/json"), answer.text
    read: str = answer.json()["error"]["code"]
    return read


def test_a_stream_arrives_chunk_by_chunk_over_http2_at_the_openai_client(edge: Edge) -> None:
    with edge.client() as http:
        client = openai.OpenAI(api_key=ALICE, base_url=f"{edge.url}/v1", http_client=http, max_retries=0)
        seen = ""
        question = [{"role": "user", "content": "Count."}]
        for chunk in client.chat.completions.create(model="tiny", messages=question, stream=True):
            # the engine sends no second chunk before: a buffered stream would never end
            (edge.gateway.place / "go").touch()
            seen += chunk.choices[0].delta.content or ""
    assert seen == "01234"
    with edge.client() as http:
        assert http.get("/v1/models").http_version == "HTTP/2"
    assert edge.logged("/v1/chat/completions", 200)["request"]["proto"] == "HTTP/2.0"  # type: ignore[index]


# Routes of engines, of routers and of Caddy's own administration.
CLOSED = (
    *("/metrics", "/invocations", "/docs", "/openapi.json", "/version", "/load", "/ping", "/slots", "/props"),
    *("/v1/models/../../metrics", "/v1/models/%2e%2e/%2e%2e/metrics", "/v1/models/..%2f..%2fmetrics", "/health/x"),
    *("/", "//metrics", "/v1", "/v1/lora-adapters", "/completion", "/v1/chat/completions/render", "/sleep"),
    *("/workers", "/engine_metrics", "/config/", "/add_worker"),
    # an engine may read these otherwise than Caddy
    *("/metrics/../v1/models", "/v1/conversations/..%2fmodels", "//v1/models", "/v1//models", "/v1/models/%2e%2e/x"),
)


def status_of(edge: Edge, target: str, *options: str) -> int:
    """The status of a request for exactly this target: curl does not tidy it."""
    quiet = ("-sS", "--path-as-is", "-o", "/dev/null", "-w", "%{http_code}")
    done = subprocess.run(
        ["curl", *quiet, "--cacert", str(edge.caddy.root), *options, edge.url + target],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_no_other_route_is_reachable(edge: Edge) -> None:
    assert {path: status_of(edge, path) for path in CLOSED} == dict.fromkeys(CLOSED, 401)
    owner = ("-H", f"Authorization: Bearer {KEY}")
    assert {path: status_of(edge, path, *owner) for path in CLOSED} == dict.fromkeys(CLOSED, 404)
    assert status_of(edge, "/v1/models", *owner) == 200


def test_without_a_key_only_health_is_answered(edge: Edge) -> None:
    with edge.client("") as http:
        assert http.get("/health").status_code == 200
        for path in ("/v1/models", "/v1/chat/completions", "/v1/responses/x"):
            refused = http.post(path, json={})
            assert (refused.status_code, code(refused)) == (401, "invalid_api_key")
            assert refused.headers["www-authenticate"] == "Bearer"
    with edge.client("another-key-0123456789") as http:
        assert http.get("/v1/models").status_code == 401
    with edge.client("") as http:
        assert http.get("/v1/models", headers={"x-api-key": ALICE}).status_code == 200


def test_the_log_has_names_of_keys_and_no_key(edge: Edge) -> None:
    with edge.client() as http:
        answer = http.get("/v1/models", headers={"x-api-key": ALICE}, params={"api_key": ALICE})
        assert "x-dflash-key" not in answer.headers
        assert not {"server", "via"} & {name for name in answer.headers if "aiohttp" in answer.headers[name]}
    assert edge.logged("/v1/models?api_key=REDACTED", 200)["key"] == "alice"
    with edge.client(KEY) as http:
        http.get("/v1/responses/x")
    assert edge.logged("/v1/responses/x", 200)["key"] == "owner"
    written = edge.caddy.log.read_text() + edge.caddy.errors.read_text()
    assert not [key for key in (KEY, ALICE) if key in written]
    assert not [key for key in (KEY, ALICE) if key in (edge.caddy.log.parent / "Caddyfile").read_text()]


def test_a_stream_that_its_client_leaves_is_logged_without_its_key(edge: Edge) -> None:
    (edge.gateway.place / "go").unlink(missing_ok=True)
    asked = {"messages": [{"role": "user", "content": "Count."}], "stream": True}
    with (
        edge.client("") as http,
        http.stream("POST", "/v1/chat/completions", headers={"x-api-key": ALICE}, json=asked) as answer,
    ):
        assert answer.status_code == 200
        next(answer.iter_lines())
    until(lambda: "incomplete response" in edge.caddy.errors.read_text())
    assert ALICE not in edge.caddy.errors.read_text() + edge.caddy.log.read_text()


@pytest.mark.parametrize("http2", [False, True])
def test_a_body_above_the_limit_is_413_for_the_openai_client(edge: Edge, http2: bool) -> None:
    with edge.client(http2=http2) as http:
        client = openai.OpenAI(api_key=ALICE, base_url=f"{edge.url}/v1", http_client=http, max_retries=0)
        question = [{"role": "user", "content": LARGE.decode()}]
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(model="tiny", messages=question)
    assert refused.value.status_code == 413
    assert refused.value.code == "request_too_large"


@pytest.mark.parametrize("options", [(), ("--http1.1",), ("--http1.1", "-H", "Expect:"), ("-H", "Expect:")])
def test_a_body_above_the_limit_is_413_for_curl(edge: Edge, tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "body").write_bytes(LARGE)
    sent = ("--data-binary", f"@{tmp_path / 'body'}", "-H", f"Authorization: Bearer {ALICE}", *options)
    assert status_of(edge, "/v1/chat/completions", *sent) == 413
    assert status_of(edge, "/v1/chat/completions", *sent, "-H", "Transfer-Encoding: chunked") == 413


def test_a_body_within_the_limit_arrives_whole(edge: Edge) -> None:
    with edge.client() as http:
        answer = http.post("/v1/chat/completions", content=b"1" * (MIB - 1))
        assert (answer.status_code, answer.json()["size"]) == (200, MIB - 1)


def test_plain_http_is_redirected_and_other_names_are_refused(edge: Edge) -> None:
    # as with port 80, clients name no port
    moved = httpx.get(f"{edge.plain_url}/v1/models?x=1", headers={"Host": "127.0.0.1"}, timeout=HANGS)
    assert (moved.status_code, moved.headers["location"]) == (308, "https://127.0.0.1/v1/models?x=1")
    other = {"Host": "other.example.com"}
    assert httpx.get(f"{edge.plain_url}/health", headers=other, timeout=HANGS).status_code == 421
    with edge.client() as http:
        assert http.get("/v1/models", headers=other).status_code == 421


def test_an_engine_that_starts_is_503_in_json(tmp_path: Path) -> None:
    with published(tmp_path, f"127.0.0.1:{free_port()}") as caddy:
        root = ssl.create_default_context(cafile=str(caddy.root))
        answer = httpx.get(f"{caddy.url}/health", verify=root, timeout=HANGS)
    assert (answer.status_code, code(answer), answer.headers["retry-after"]) == (503, "engine_unavailable", "5")


@pytest.mark.parametrize("allowed", [f"https://Other.example.com, {ORIGIN.upper()}", "*"])
def test_pages_of_allowed_origins_may_ask_first_and_read_errors(tmp_path: Path, allowed: str) -> None:
    asks = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    with (
        opened(tmp_path, ALLOWED_ORIGINS=allowed) as gateway,
        published(tmp_path / "caddy", gateway.url, ALLOWED_ORIGINS=allowed) as caddy,
        Edge(gateway, caddy, "").client("") as http,
    ):
        first = http.options("/v1/chat/completions", headers=asks)
        refused = http.get("/v1/models", headers={"Origin": ORIGIN})
        assert (first.status_code, refused.status_code, code(refused)) == (204, 401, "invalid_api_key")
        assert {answer.headers["access-control-allow-origin"] for answer in (first, refused)} <= {ORIGIN, "*"}
        for origin in (
            "https://evil.example.com",
            "https://page.example.co",
            "https://other.example.com, https://page",
        ):
            refused = http.get("/v1/models", headers={"Origin": origin})
            assert ("access-control-allow-origin" in refused.headers) is (allowed == "*")


def test_without_allowed_origins_no_page_may_ask(edge: Edge) -> None:
    with edge.client("") as http:
        asked = http.options("/v1/models", headers={"Origin": ORIGIN, "Access-Control-Request-Method": "POST"})
        assert asked.status_code == 401
        assert "access-control-allow-origin" not in asked.headers


def test_a_certificate_of_another_authority_by_acme(tmp_path: Path) -> None:
    """A second Caddy is the authority: it asks ours on port 80 (HTTP-01), and signs."""
    signs = free_port()
    there = tmp_path / "authority" / "data"
    text = AUTHORITY.format(storage=there, port=signs, unused=free_port())
    with http_port() as asked, running(tmp_path / "authority", text, signs, there) as authority:
        until(authority.root.exists)
        told = {
            "DFLASH_ISSUER": "acme",
            "ACME_CA": f"https://localhost:{signs}/acme/local/directory",
            "SSL_CERT_FILE": str(authority.root),
            "HTTP_PORT": str(asked),
        }
        with published(tmp_path / "door", f"127.0.0.1:{free_port()}", "localhost", **told) as caddy:
            (certificate,) = (caddy.storage / "certificates").rglob("localhost.crt")
            assert f"localhost-{signs}-acme-local-directory" in str(certificate)
            root = ssl.create_default_context(cafile=str(authority.root))
            assert httpx.get(f"{caddy.url}/health", verify=root, timeout=HANGS).status_code == 503


@pytest.mark.parametrize("host", ["llm.example.com", "192.0.2.7", "2001:db8::7"])
def test_any_host_is_a_site_with_lets_encrypt_by_default(host: str) -> None:
    told = [program(), "adapt", "--config", str(asset("images", "door", "Caddyfile"))]
    done = subprocess.run(told, env={"DFLASH_DOMAIN": host}, capture_output=True, text=True, check=True)
    apps = json.loads(done.stdout)["apps"]
    for server, port in zip(apps["http"]["servers"].values(), (443, 80), strict=True):
        assert server["listen"] == [f":{port}"]
        named, other = server["routes"]
        assert named["match"] == [{"host": [host]}]
        assert "match" not in other
    named, _ = apps["tls"]["automation"]["policies"]
    (issuer,) = named["issuers"]
    assert (named["subjects"], issuer["module"]) == ([host], "acme")
    assert issuer["ca"] == "https://acme-v02.api.letsencrypt.org/directory"


def test_published_paths_are_those_of_applications() -> None:
    text = asset("images", "door", "Caddyfile").read_text().partition("@published {")[2].partition("}")[0]
    paths = text.replace("path", "").split()
    assert sorted(paths) == sorted({LIVENESS, *INFERENCE, *(f"{prefix}*" for prefix in BELOW)})


def test_the_caddyfile_is_formatted() -> None:
    file = asset("images", "door", "Caddyfile")
    done = subprocess.run([program(), "fmt", str(file)], capture_output=True, text=True, check=False)
    assert done.stdout == file.read_text()

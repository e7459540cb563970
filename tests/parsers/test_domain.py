"""A real llama.cpp under a domain: `up` starts Caddy with HTTPS in front of it, and all commands know the URL."""

import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from dflash_deploy.deployment import Deployment
from dflash_deploy.operations import status
from tests.support.cli import dflash, edit_env
from tests.support.llamacpp_native import processes
from tests.support.ports import free_run

HANGS = 300.0
"""Seconds after which something counts as hung."""

HOST = "localhost"
ELSEWHERE = "127.0.0.2"
"""An address of this machine that only servers on all addresses listen on, as other machines see it."""

QUESTION = [{"role": "user", "content": "Count from 1 to 10."}]

CLOSED = (
    *("/metrics", "/props", "/slots", "/docs", "/openapi.json", "/completion", "/v1", "/", "//metrics", "/health/x"),
    *("/v1/chat/completions/../../../slots", "/v1/models/%2e%2e/%2e%2e/metrics", "/lora-adapters", "/config/"),
)
"""Routes of llama.cpp and of Caddy's administration."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that `up` has started under a domain."""
    directory, port = tmp_path_factory.mktemp("domain"), free_run(3)
    told = ("--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", "--port", str(port), "--domain", HOST)
    dflash("init", *told, at=directory).succeeded()
    edit_env(directory, DFLASH_HTTPS_PORT=str(port + 1), DFLASH_HTTP_PORT=str(port + 2), MAX_BODY_MIB="1")
    started = dflash("up", "--json", at=directory).succeeded().document["data"]
    assert started["endpoint"] == f"{url_of(directory)}/v1"
    checked = {check["name"]: check["status"] for check in started["checks"]}
    assert checked["door: certificate"] == checked["door: live"] == checked["door: models"] == "passed"
    yield directory
    dflash("down", at=directory).succeeded()
    assert not processes(directory)


def port_of(directory: Path, name: str) -> int:
    return int(Deployment.existing(directory).values[name])


def url_of(directory: Path) -> str:
    return f"https://{HOST}:{port_of(directory, 'DFLASH_HTTPS_PORT')}"


def root_of(directory: Path) -> Path:
    """The certificate that `connect` tells clients to trust."""
    found = dflash("connect", "openai-python", "--json", at=directory).succeeded().document["data"]
    assert found["endpoint"] == f"{url_of(directory)}/v1"
    assert url_of(directory) in found["configuration"]
    return Path(found["root_certificate"])


def client(directory: Path, key: str | None = None) -> httpx.Client:
    """A client as on another machine: it knows the URL, the key and the root certificate."""
    known = Deployment.existing(directory).key.reveal() if key is None else key
    headers = {"Authorization": f"Bearer {known}"} if known else {}
    trust = ssl.create_default_context(cafile=str(root_of(directory)))
    return httpx.Client(base_url=url_of(directory), headers=headers, verify=trust, http2=True, timeout=HANGS)


def sdk(directory: Path, http: httpx.Client) -> openai.OpenAI:
    key = Deployment.existing(directory).key.reveal()
    return openai.OpenAI(api_key=key, base_url=f"{url_of(directory)}/v1", http_client=http, max_retries=0)


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANGS
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.2)


def listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def caddy_of(directory: Path) -> int:
    (caddy,) = [pid for pid, line in processes(directory).items() if line.split(" ")[0].endswith("/caddy")]
    return caddy


def test_a_stream_reaches_the_openai_client_over_http2(served: Path) -> None:
    with client(served) as http:
        chunks = sdk(served, http).chat.completions.create(model="tiny", messages=QUESTION, stream=True, max_tokens=32)
        assert len([chunk for chunk in chunks if chunk.choices]) > 1
        assert http.get("/v1/models").http_version == "HTTP/2"


def test_only_the_door_is_reachable_from_elsewhere_and_only_routes_of_applications(served: Path) -> None:
    assert not listens(ELSEWHERE, port_of(served, "DFLASH_PORT"))
    assert listens(ELSEWHERE, port_of(served, "DFLASH_HTTPS_PORT"))
    for key, expected in (("", 401), (None, 404)):
        with client(served, key) as http:
            assert {path: http.get(path).status_code for path in CLOSED} == dict.fromkeys(CLOSED, expected)
    with client(served, "") as http:
        assert http.get("/health").status_code == 200
        assert http.post("/v1/chat/completions", json={}).status_code == 401
    plain = f"http://{HOST}:{port_of(served, 'DFLASH_HTTP_PORT')}"
    assert httpx.get(f"{plain}/v1/models", timeout=HANGS).headers["location"] == f"{url_of(served)}/v1/models"


def test_a_body_above_the_limit_is_413(served: Path) -> None:
    question = [{"role": "user", "content": "x" * (4 << 20)}]
    with client(served) as http, pytest.raises(openai.APIStatusError) as refused:
        sdk(served, http).chat.completions.create(model="tiny", messages=question)
    assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")


def test_the_access_log_has_names_of_keys_and_no_key(served: Path) -> None:
    dflash("keys", "add", "alice", at=served).succeeded()
    alice = next(key.key for key in Deployment.existing(served).further_keys if key.name == "alice")
    with client(served, alice) as http:
        assert http.get("/v1/models", params={"api_key": alice}).status_code == 200
        assert http.post("/v1/chat/completions", json={"model": "tiny", "messages": QUESTION}).status_code == 200

    def seen() -> list[dict[str, object]]:
        shown = dflash("logs", at=served).succeeded().out.splitlines()
        lines = [line.partition(" | ")[2] for line in shown if line.startswith("door | {")]
        return [line for line in map(json.loads, lines) if line.get("key") == "alice"]

    eventually(lambda: len(seen()) == 2)
    uris = [line["request"]["uri"] for line in seen()]  # type: ignore[index]
    assert uris == ["/v1/models?api_key=[redacted]", "/v1/chat/completions"]
    assert any(line.startswith("engine | ") for line in dflash("logs", at=served).succeeded().out.splitlines())
    written = "".join(file.read_text(errors="replace") for file in (served / ".dflash" / "door").glob("*.log*"))
    written += (served / ".dflash" / "door" / "Caddyfile").read_text() + "".join(processes(served).values())
    assert not [key for key in (alice, Deployment.existing(served).key.reveal()) if key in written]
    dflash("keys", "revoke", "alice", at=served).succeeded()


def test_test_status_and_doctor_know_the_domain(served: Path) -> None:
    tested = dflash("test", "--only", "live,auth,stream", "--json", at=served).succeeded().document["data"]
    passed = [check["name"] for check in tested["checks"] if check["status"] == "passed"]
    assert passed[-4:] == ["door: certificate", "door: live", "door: auth", "door: stream"]
    shown = dflash("status", "--json", at=served).succeeded().document["data"]
    assert (shown["endpoint"], shown["state"]) == (f"{url_of(served)}/v1", "ready")
    assert shown["door"]["state"] == "running"
    assert "problem" not in shown["door"]
    found = {check["name"]: check for check in dflash("doctor", "--json", at=served).document["data"]["checks"]}
    ports = {f"port {port_of(served, name)}" for name in ("DFLASH_HTTPS_PORT", "DFLASH_HTTP_PORT")}
    assert {found[name]["status"] for name in ("caddy", "dns", *ports)} == {"ok"}


def test_bench_measures_through_the_door(served: Path) -> None:
    before = (served / ".dflash" / "door" / "door.log").read_text().count("/v1/chat/completions")
    told = ("--workload", "own", "--concurrency", "1", "--requests", "2", "--warmup", "1", "--max-tokens", "16")
    dflash("bench", *told, at=served).succeeded()
    after = (served / ".dflash" / "door" / "door.log").read_text().count("/v1/chat/completions")
    assert after - before >= 3


def test_a_killed_caddy_is_shown_and_comes_back_while_the_engine_runs_on(served: Path) -> None:
    engine = status(served).engine.identity
    os.kill(caddy_of(served), signal.SIGKILL)
    eventually(lambda: dflash("status", "--json", at=served).document["data"]["door"]["state"] == "exited")
    failed = dflash("test", "--only", "live", "--json", at=served).document["data"]["checks"]
    assert [(check["name"], check["status"]) for check in failed][-1] == ("door: certificate", "failed")
    dflash("up", at=served).succeeded()
    with client(served) as http:
        assert http.get("/v1/models").status_code == 200
    assert status(served).engine.identity == engine


def test_another_domain_and_none_restart_no_engine(served: Path) -> None:
    engine = status(served).engine.identity
    try:
        edit_env(served, DFLASH_DOMAIN="127.0.0.1")
        moved = dflash("up", "--json", at=served).succeeded().document["data"]
        assert moved["endpoint"] == f"https://127.0.0.1:{port_of(served, 'DFLASH_HTTPS_PORT')}/v1"
        edit_env(served, DFLASH_DOMAIN="")
        plain = dflash("up", "--json", at=served).succeeded().document["data"]
        assert plain["endpoint"] == f"http://127.0.0.1:{port_of(served, 'DFLASH_PORT')}/v1"
        assert not listens("127.0.0.1", port_of(served, "DFLASH_HTTPS_PORT"))
        assert "door" not in dflash("status", "--json", at=served).succeeded().document["data"]
        assert status(served).engine.identity == engine
    finally:
        edit_env(served, DFLASH_DOMAIN=HOST)
        dflash("up", at=served).succeeded()

"""A real llama.cpp under a domain: `up` starts Caddy with HTTPS in front of it, and all commands know the URL."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.status import status
from tests.support.cli import dflash, edit_env
from tests.support.commands import eventually
from tests.support.llamacpp_native import processes
from tests.support.ports import free_run
from tests.support.under_domain import (
    ELSEWHERE,
    HOST,
    QUESTION,
    client,
    listens,
    logged,
    only_routes_of_applications,
    port_of,
    streams_over_http2,
    too_large,
    url_of,
)


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


def caddy_of(directory: Path) -> int:
    (caddy,) = [pid for pid, line in processes(directory).items() if line.split(" ")[0].endswith("/caddy")]
    return caddy


def test_a_stream_reaches_the_openai_client_over_http2(served: Path) -> None:
    streams_over_http2(served)


def test_only_the_door_is_reachable_from_elsewhere_and_only_routes_of_applications(served: Path) -> None:
    assert not listens(ELSEWHERE, port_of(served, "DFLASH_PORT"))
    assert listens(ELSEWHERE, port_of(served, "DFLASH_HTTPS_PORT"))
    only_routes_of_applications(served)


def test_a_body_above_the_limit_is_413(served: Path) -> None:
    refused = too_large(served)
    assert (refused.status_code, refused.code) == (413, "request_too_large")


def test_the_access_log_has_names_of_keys_and_no_key(served: Path) -> None:
    dflash("keys", "add", "alice", at=served).succeeded()
    alice = next(key.key for key in Deployment.existing(served).further_keys if key.name == "alice")
    with client(served, alice) as http:
        assert http.get("/v1/models", params={"api_key": alice}).status_code == 200
        assert http.post("/v1/chat/completions", json={"model": "tiny", "messages": QUESTION}).status_code == 200

    eventually(lambda: len(logged(served, "alice")) == 2)
    uris = [line["request"]["uri"] for line in logged(served, "alice")]
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
    told = ("--workload", "own", "--concurrency", "1", "--requests", "2", "--max-tokens", "16")
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

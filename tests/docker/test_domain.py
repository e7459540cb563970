"""A llama.cpp engine under a domain, with its door as a container, on the ports 80 and 443 of this machine."""

import json
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.status import status
from tests.support.cli import dflash, edit_env
from tests.support.commands import eventually
from tests.support.composed import composed, docker
from tests.support.container_engine import Engine
from tests.support.ports import http_port
from tests.support.standin_llamacpp import DEBIAN, ensure_server_image

IMAGE = "dflash-deploy/llamacpp:domain-under-test"
USER = 1000
HANGS = 300.0  # seconds after which something counts as hung
HOST, URL = "localhost", "https://localhost"
# An address of this machine that only servers on all addresses listen on, as other machines see it.
ELSEWHERE = "127.0.0.2"

QUESTION = [{"role": "user", "content": "Count from 1 to 10."}]

OVERRIDE = f"""\
services:
  door:
    build:
      args:
        BASE_IMAGE: {DEBIAN}
"""


def containers(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """What `docker inspect` says of each container of the deployment, by its service."""
    of_project = f"label=com.docker.compose.project={deployment.project_name}"
    names = docker("ps", "-aq", "--no-trunc", "--filter", of_project).split()
    found = json.loads(docker("inspect", *names)) if names else []
    return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}


@pytest.fixture(scope="module")
def served(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`init` and `up` of one engine under a domain as the user 1000; both images are built on the way."""
    directory, base = tmp_path_factory.mktemp("domain"), ensure_server_image()
    (directory / "compose.override.yaml").write_text(OVERRIDE)
    told, owner = ("--engine", "llamacpp", "--domain", HOST), USER if os.geteuid() == 0 else None
    with http_port(), composed(directory, base, *told, image=IMAGE, owner=owner, MAX_BODY_MIB="1") as made:
        eventually(lambda: listens("127.0.0.1", 443) and root_of(directory).is_file())
        yield directory
    assert not containers(made)


def listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def port_of(directory: Path) -> int:
    return int(Deployment.existing(directory).values["DFLASH_PORT"])


def root_of(directory: Path) -> Path:
    """The certificate that `connect` tells clients to trust."""
    found = dflash("connect", "openai-python", "--json", at=directory).succeeded().document["data"]
    assert found["endpoint"] == f"{URL}/v1"
    return Path(found["root_certificate"])


def client(directory: Path, key: str | None = None) -> httpx.Client:
    """An HTTP client with the first key, or another one; an empty one is not sent."""
    known = Deployment.existing(directory).key.reveal() if key is None else key
    headers = {"Authorization": f"Bearer {known}"} if known else {}
    trust = ssl.create_default_context(cafile=str(root_of(directory)))
    return httpx.Client(base_url=URL, headers=headers, verify=trust, http2=True, timeout=HANGS)


def sdk(directory: Path, http: httpx.Client) -> openai.OpenAI:
    key = Deployment.existing(directory).key.reveal()
    return openai.OpenAI(api_key=key, base_url=f"{URL}/v1", http_client=http, max_retries=0)


def test_a_stream_reaches_the_openai_client_over_http2(served: Path) -> None:
    with client(served) as http:
        chunks = sdk(served, http).chat.completions.create(model="tiny", messages=QUESTION, stream=True, max_tokens=32)
        assert len([chunk for chunk in chunks if chunk.choices]) > 1
        assert http.get("/v1/models").http_version == "HTTP/2"


def test_only_the_door_is_reachable_from_elsewhere_and_only_routes_of_applications(served: Path) -> None:
    assert not listens(ELSEWHERE, port_of(served))
    assert listens(ELSEWHERE, 443)
    closed = ("/metrics", "/props", "/slots", "/docs", "/", "//metrics", "/health/x", "/v1/models/%2e%2e/metrics")
    for key, expected in (("", 401), (None, 404)):
        with client(served, key) as http:
            assert {path: http.get(path).status_code for path in closed} == dict.fromkeys(closed, expected)
    with client(served, "") as http:
        assert http.get("/health").status_code == 200
    moved = httpx.get(f"http://{HOST}/v1/models", timeout=HANGS)
    assert (moved.status_code, moved.headers["location"]) == (308, f"{URL}/v1/models")


def test_a_body_above_the_limit_is_413(served: Path) -> None:
    with client(served) as http, pytest.raises(openai.APIStatusError) as refused:
        sdk(served, http).chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * (4 << 20)}])
    assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")


def test_the_door_is_closed_in_and_holds_no_secret(served: Path) -> None:
    found = containers(Deployment(served))
    assert set(found) == {"engine", "door"}
    door, host = found["door"], found["door"]["HostConfig"]
    assert (host["ReadonlyRootfs"], host["CapDrop"], host["CapAdd"] or []) == (True, ["ALL"], [])
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert door["Config"]["User"] == found["engine"]["Config"]["User"]
    assert {mount["Destination"] for mount in door["Mounts"]} == {"/data"}
    (bound,) = found["engine"]["HostConfig"]["PortBindings"].values()
    assert [one["HostIp"] for one in bound] == ["127.0.0.1"]


def test_the_access_log_has_names_of_keys_and_docker_shows_no_key(served: Path) -> None:
    dflash("keys", "add", "alice", at=served).succeeded()
    deployment = Deployment.existing(served)
    alice = next(key.key for key in deployment.further_keys if key.name == "alice")

    def logged() -> list[str]:
        shown = dflash("logs", at=served).succeeded().out.splitlines()
        lines = [json.loads(line.partition(" | ")[2]) for line in shown if line.startswith("door | {")]
        return [line["request"]["uri"] for line in lines if line.get("key") == "alice"]

    with client(served, alice) as http:
        assert http.get("/v1/models", params={"api_key": alice}).status_code == 200
    eventually(lambda: logged() == ["/v1/models?api_key=[redacted]"])
    shown = [json.dumps(containers(deployment))]
    for one in containers(deployment).values():
        shown += [docker("logs", one["Id"]), docker("top", one["Id"], "-eo", "pid,args")]
    assert not [key for key in (alice, deployment.key.reveal()) for text in shown if key in text]
    dflash("keys", "revoke", "alice", at=served).succeeded()


def test_test_bench_status_and_doctor_know_the_domain(served: Path) -> None:
    tested = dflash("test", "--only", "live,auth,stream", "--json", at=served).succeeded().document["data"]
    passed = [check["name"] for check in tested["checks"] if check["status"] == "passed"]
    assert passed[-3:] == ["door: live", "door: auth", "door: stream"]
    before = docker("logs", containers(Deployment(served))["door"]["Id"]).count("/v1/chat/completions")
    told = ("--workload", "own", "--concurrency", "1", "--requests", "2", "--max-tokens", "16")
    dflash("bench", *told, at=served).succeeded()
    after = docker("logs", containers(Deployment(served))["door"]["Id"]).count("/v1/chat/completions")
    assert after - before >= 3
    shown = dflash("status", "--json", at=served).succeeded().document["data"]
    assert (shown["endpoint"], shown["state"], shown["door"]["state"]) == (f"{URL}/v1", "ready", "running")
    found = {check["name"]: check for check in dflash("doctor", "--json", at=served).document["data"]["checks"]}
    assert found["dns"]["status"] == "ok"


def test_while_the_engine_is_stopped_clients_get_503_and_a_failed_check(served: Path) -> None:
    docker("stop", "--timeout", "0", containers(Deployment(served))["engine"]["Id"])
    with client(served) as http:
        answer = http.get("/v1/models")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    failed = dflash("test", "--only", "door", "--json", at=served).document["data"]["checks"]
    assert [check["status"] for check in failed if check["name"] == "door: live"] == ["failed"]
    dflash("up", at=served).succeeded()


def test_no_domain_and_a_new_one_restart_no_engine_and_keep_the_certificates(served: Path) -> None:
    first, signed = status(served).engine, root_of(served).read_bytes()
    edit_env(served, DFLASH_DOMAIN="")
    (override := served / "compose.override.yaml").unlink()
    without = dflash("up", "--json", at=served).succeeded().document["data"]
    assert without["endpoint"] == f"http://127.0.0.1:{port_of(served)}/v1"
    assert set(containers(Deployment(served))) == {"engine"}
    override.write_text(OVERRIDE)
    edit_env(served, DFLASH_DOMAIN=HOST)
    assert dflash("up", "--json", at=served).succeeded().document["data"]["endpoint"] == f"{URL}/v1"
    assert set(containers(Deployment(served))) == {"engine", "door"}
    assert (status(served).engine, root_of(served).read_bytes()) == (first, signed)

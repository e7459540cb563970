"""The door and the keys of two real llama.cpp servers: what is published to whom, also under a domain."""

import http.client
import json
import os
import signal
import ssl
from pathlib import Path

import httpx

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.door.caddyfile import PATHS
from dflash_deploy.operations.keys import usage_of_keys
from dflash_deploy.operations.status import status
from dflash_deploy.runtime.protocol import EngineState
from dflash_deploy.serve.gateway.keys import LIVENESS
from dflash_deploy.serve.router.files import read_keys
from dflash_deploy.serve.router.values import ROUTES
from tests.support.askers import asking
from tests.support.cli import dflash, edit_env
from tests.support.commands import eventually
from tests.support.llamacpp_native import processes
from tests.support.two_engines import CLIENTS, HANGS, answered, askers_of, members

PUBLISHED = [path.replace("*", "x") for path in PATHS]


def test_no_key_but_a_clients_generates_through_the_router(two_engines: Path) -> None:
    keys = read_keys(two_engines / ".dflash" / "router" / "keys.json")
    for key in ("", "a-key-that-nobody-has", keys.probe, keys.admin):
        assert answered(two_engines, key) in {401, 403}
    owner = Deployment.existing(two_engines).key.reveal()
    assert answered(two_engines, owner) == 200
    # neither the arguments of a process nor a log has a key
    lines = "\n".join(processes(two_engines).values())
    logs = "\n".join(log.read_text(errors="replace") for log in (two_engines / ".dflash").rglob("*.log"))
    for key in (keys.probe, keys.admin, owner):
        assert key not in lines
        assert key not in logs


def door_status(directory: Path, method: str, path: str, **headers: str) -> int:
    """The status of a request for exactly this path, as httpx would tidy it."""
    port = int(Deployment.existing(directory).values["DFLASH_PORT"])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS)
    try:
        connection.putrequest(method, path)
        for name, value in {"Content-Length": "0", **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


UNPUBLISHED = (
    *("/metrics", "/docs", "/openapi.json", "/slots", "/props", "/v1", "/health/x", "//metrics", "/invocations"),
    *("/v1/chat/completions/../../../workers", "/workers/../workers", "/v1/models/%2e%2e/%2e%2e/engine_metrics"),
)


def test_the_door_publishes_only_the_routes_of_applications(two_engines: Path) -> None:
    bearer = f"Bearer {Deployment.existing(two_engines).key.reveal()}"
    for method in ("GET", "POST", "DELETE", "HEAD"):
        every = {*PUBLISHED, *ROUTES, *UNPUBLISHED} - {LIVENESS}
        assert {path: door_status(two_engines, method, path) for path in every} == dict.fromkeys(every, 401)
        closed = {*ROUTES, *UNPUBLISHED}
        seen = {path: door_status(two_engines, method, path, Authorization=bearer) for path in closed}
        assert seen == dict.fromkeys(closed, 404)
    opened = {method: door_status(two_engines, method, LIVENESS) for method in ("GET", "HEAD", "POST", "DELETE")}
    assert opened == {"GET": 200, "HEAD": 200, "POST": 401, "DELETE": 401}


def test_each_way_to_send_a_key_works_through_the_door_and_its_log_names_it(two_engines: Path) -> None:
    deployment = Deployment.existing(two_engines)
    key, url = deployment.key.reveal(), f"http://localhost:{deployment.values['DFLASH_PORT']}"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 4}
    for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
        for path in ("/v1/chat/completions", "/v1/messages"):
            answer = httpx.post(url + path, json=body, headers=headers, timeout=HANGS)
            assert answer.status_code == 200, answer.text
            assert "x-dflash-key" not in answer.headers
        tokens = httpx.post(f"{url}/tokenize", json={"content": "Count."}, headers=headers, timeout=HANGS)
        assert tokens.json()["tokens"]
        assert httpx.get(f"{url}/v1/models", headers=headers, timeout=HANGS).status_code == 200
    for headers in (
        {"x-api-key": ""},
        {"x-api-key": "another-key"},
        {"Authorization": ""},
        {"Authorization": "Basic x"},
    ):
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/models", "/tokenize"):
            refused = httpx.post(url + path, json=body, headers=headers, timeout=HANGS)
            assert refused.status_code in {401, 403}, (headers, path)
    log = two_engines / ".dflash" / "door" / "door.log"
    eventually(lambda: '"key":"owner"' in log.read_text())
    assert key not in log.read_text()


def test_a_killed_caddy_comes_back_with_up_and_the_engines_go_on(two_engines: Path) -> None:
    before = [member.engine.identity for member in members(two_engines).values()]
    (caddy,) = [pid for pid, line in processes(two_engines).items() if line.split(" ")[0].endswith("/caddy")]
    os.kill(caddy, signal.SIGKILL)
    eventually(
        lambda: (
            status(two_engines).door == EngineState("exited", exit_code=-9, identity=door_of(two_engines), asked=False)
        )
    )
    assert status(two_engines).answered.state == "exited"
    dflash("up", at=two_engines).succeeded()
    assert status(two_engines).answered.state == "ready"
    assert [member.engine.identity for member in members(two_engines).values()] == before


def door_of(directory: Path) -> str:
    """The identity of the door's process that was started last."""
    run = json.loads((directory / ".dflash" / "door" / "run.json").read_text())
    return f"process {run['pid']}"


def test_a_key_comes_and_goes_on_all_engines_and_its_use_is_added_up(two_engines: Path) -> None:
    added = dflash("keys", "add", "alice", "--json", at=two_engines).succeeded()
    assert added.document["data"]["status"] == 200
    alice = next(key.key for key in Deployment.existing(two_engines).further_keys if key.name == "alice")
    askers = askers_of(two_engines)
    askers.key = lambda: alice
    with asking(askers, CLIENTS):
        eventually(lambda: len(askers.asked) >= 40)
    assert not askers.errors()
    used = {each.name: each for each in usage_of_keys(two_engines).keys}
    assert used["alice"].requests["200"] >= len(askers.asked)
    assert "key-0" not in used
    assert dflash("keys", "revoke", "alice", "--json", at=two_engines).succeeded().document["data"]["status"] == 401
    assert {answered(two_engines, alice) for _ in range(CLIENTS)} == {401}


def test_a_domain_publishes_several_engines_too(two_engines: Path) -> None:
    before = [member.engine.identity for member in members(two_engines).values()]
    port = int(Deployment.existing(two_engines).values["DFLASH_PORT"])
    edit_env(two_engines, DFLASH_DOMAIN="localhost", DFLASH_HTTPS_PORT=str(port + 5), DFLASH_HTTP_PORT=str(port + 6))
    try:
        published = dflash("up", "--json", at=two_engines).succeeded().document["data"]["endpoint"]
        assert published == f"https://localhost:{port + 5}/v1"
        root = dflash("connect", "--json", at=two_engines).succeeded().document["data"]["root_certificate"]
        trust = ssl.create_default_context(cafile=root)
        bearer = {"Authorization": f"Bearer {Deployment.existing(two_engines).key.reveal()}"}
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 4}
        with httpx.Client(base_url=published, verify=trust, http2=True, timeout=HANGS) as http:
            answer = http.post("/chat/completions", json=body, headers=bearer)
            assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
            assert http.post("/chat/completions", json=body).status_code == 401
            assert http.get(f"https://localhost:{port + 5}/engine_metrics", headers=bearer).status_code == 404
        # the address on this machine stays
        assert answered(two_engines, Deployment.existing(two_engines).key.reveal()) == 200
        assert [member.engine.identity for member in members(two_engines).values()] == before
    finally:
        edit_env(two_engines, DFLASH_DOMAIN="")
        dflash("up", at=two_engines).succeeded()

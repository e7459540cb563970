"""Two real llama.cpp servers behind the real router: killed, hung, restarted, with a new key or wrong settings."""

import http.client
import json
import os
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from dflash_deploy.deployment import Deployment
from dflash_deploy.door.caddyfile import PATHS
from dflash_deploy.errors import ExitCode
from dflash_deploy.operations import status, usage_of_keys
from dflash_deploy.operations.probing import MemberStatus
from dflash_deploy.plan.replicas import engine_port
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime import EngineState
from dflash_deploy.serve.gateway.scopes import LIVENESS
from dflash_deploy.serve.router.files import read_keys
from dflash_deploy.serve.router.values import ROUTES
from dflash_deploy.startup import endpoint_of
from tests.support.askers import WHOLE, Askers, asking
from tests.support.cli import Ran, dflash, edit_env
from tests.support.llamacpp_native import processes, server_of
from tests.support.proxies import FailsAndSaysHealthy
from tests.support.two_engines import first_engine_behind

HANGS = 300.0
"""Seconds after which something counts as hung."""

CLIENTS = 8

PUBLISHED = [path.replace("*", "x") for path in PATHS]


def askers_of(directory: Path) -> Askers:
    def key() -> str:
        return Deployment(directory).key.reveal()

    deployment = Deployment.existing(directory)
    with endpoint_of(deployment, plan_of(deployment)) as endpoint:
        return Askers(endpoint.url, endpoint.model, key, patience=HANGS)


def answered(directory: Path, key: str) -> int:
    """The status of a generation with a key; an empty one is not sent. A refusal generates nothing."""
    deployment = Deployment.existing(directory)
    with endpoint_of(deployment, plan_of(deployment)) as endpoint:
        url, model = f"{endpoint.url}/v1/chat/completions", endpoint.model
    body = {"model": model, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = httpx.post(url, json=body, headers=headers, timeout=HANGS)
    assert ("choices" in answer.text) == (answer.status_code == 200)
    return answer.status_code


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANGS
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.2)


def members(directory: Path) -> dict[int, MemberStatus]:
    return {member.number: member for member in status(directory).members}


def healthy(directory: Path, number: int) -> bool:
    """Whether the router sends requests to an engine and sees it healthy."""
    seen = json.loads((directory / ".dflash" / "router" / "seen.json").read_text())["workers"]
    port = Deployment.existing(directory).values["DFLASH_PORT"]
    return {"url": f"http://127.0.0.1:{engine_port(int(port), number)}", "healthy": True} in [
        {"url": worker["url"], "healthy": worker["healthy"]} for worker in seen
    ]


def under_load(directory: Path, command: Callable[[], Ran], *, least: int) -> tuple[Ran, Askers]:
    """Run a command while clients ask, until they have asked `least` times."""
    askers = askers_of(directory)
    with asking(askers, CLIENTS):
        ran = command()
        eventually(lambda: len(askers.asked) >= least)
    return ran, askers


def test_both_engines_answer_and_status_shows_each(two_engines: Path) -> None:
    found = dflash("status", "--json", at=two_engines).succeeded().document["data"]
    assert [(one["replica"], one["state"], one["routed"]) for one in found["replicas"]] == [
        (1, "ready", True),
        (2, "ready", True),
    ]
    assert found["state"] == "ready"
    assert found["router"]["state"] == found["door"]["state"] == "running"
    one = dflash("status", "--replica", "2", "--json", at=two_engines).succeeded().document["data"]
    assert one["endpoint"] == found["replicas"][1]["endpoint"]
    refused = dflash("status", "--replica", "3", at=two_engines)
    assert refused.code == ExitCode.USAGE
    lines = dflash("logs", at=two_engines).succeeded().out
    assert {"engine 1 ", "engine 2 ", "door ", "router "} <= {line.partition("|")[0] for line in lines.splitlines()}
    assert "engine 1 " not in dflash("logs", "--replica", "1", at=two_engines).succeeded().out


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
            status(two_engines).door == EngineState("exited", exit_code=-9, identity=door_of(two_engines), unasked=True)
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


def test_a_rolling_restart_and_a_new_key_lose_no_request(two_engines: Path) -> None:
    before = [member.engine.identity for member in members(two_engines).values()]
    ran, askers = under_load(two_engines, lambda: dflash("restart", at=two_engines), least=100)
    ran.succeeded()
    assert not askers.errors()
    assert not set(before) & {member.engine.identity for member in members(two_engines).values()}

    old = Deployment.existing(two_engines).key
    ran, askers = under_load(two_engines, lambda: dflash("keys", "rotate", "--json", at=two_engines), least=100)
    assert ran.succeeded().document["data"]["proof"] == {
        "old_key": {"before": 200, "after": 401},
        "new_key": {"after": 200},
    }
    assert not askers.errors()
    assert {answered(two_engines, old.reveal()) for _ in range(CLIENTS)} == {401}


def test_a_killed_engine_loses_only_its_own_streams_and_comes_back(two_engines: Path) -> None:
    askers = askers_of(two_engines)
    with asking(askers, CLIENTS):
        eventually(lambda: len(askers.asked) > CLIENTS)
        os.kill(server_of(two_engines, 1), signal.SIGKILL)
        eventually(lambda: not healthy(two_engines, 1))
        after = len(askers.asked)
        eventually(lambda: len(askers.asked) > after + 5 * CLIENTS)
        dflash("up", at=two_engines).succeeded()
        eventually(lambda: healthy(two_engines, 1))
    assert len(askers.errors()) <= CLIENTS
    assert set(askers.outcomes()) <= {WHOLE, "stream ends with an error", "stream cut off"}
    assert {member.answered.state for member in members(two_engines).values()} == {"ready"}


def test_an_engine_that_hangs_is_left_out_and_taken_in_again(two_engines: Path) -> None:
    askers, server = askers_of(two_engines), server_of(two_engines, 2)
    with asking(askers, CLIENTS):
        eventually(lambda: len(askers.asked) > CLIENTS)
        os.kill(server, signal.SIGSTOP)
        try:
            eventually(lambda: not healthy(two_engines, 2))
            out = time.monotonic()
            done = len(askers.asked)
            eventually(lambda: len(askers.asked) > done + 5 * CLIENTS)
        finally:
            os.kill(server, signal.SIGCONT)
        eventually(lambda: healthy(two_engines, 2))
    # nobody who asked after it was out has waited for it
    assert all(asked.outcome == WHOLE for asked in askers.asked if asked.at > out)


def test_an_engine_that_fails_each_request_and_says_it_is_healthy_harms_no_client(two_engines: Path) -> None:
    askers, failing = askers_of(two_engines), FailsAndSaysHealthy.failing
    FailsAndSaysHealthy.asked.clear()
    with first_engine_behind(two_engines, FailsAndSaysHealthy), asking(askers, CLIENTS):
        eventually(lambda: any(not fails for _, fails in FailsAndSaysHealthy.asked))
        failing.set()
        try:
            eventually(lambda: any(fails for _, fails in FailsAndSaysHealthy.asked))
            done = len(askers.asked)
            eventually(lambda: len(askers.asked) > done + 5 * CLIENTS)
        finally:
            failing.clear()
        again = time.monotonic()
        # it gets requests again without a command
        eventually(lambda: any(at > again and not fails for at, fails in FailsAndSaysHealthy.asked))
    assert not askers.errors()


def test_settings_that_fail_stop_at_the_first_engine_and_go_back(two_engines: Path) -> None:
    before = {number: member.engine.identity for number, member in members(two_engines).items()}
    edit_env(two_engines, EXTRA_ARGS="--no-such-option")
    try:
        ran, askers = under_load(two_engines, lambda: dflash("up", at=two_engines), least=50)
    finally:
        edit_env(two_engines, EXTRA_ARGS="")
    assert ran.code == ExitCode.NOT_READY
    assert "engine 1" in ran.err
    assert "last working settings" in ran.err
    assert not askers.errors()
    after = members(two_engines)
    assert {member.answered.state for member in after.values()} == {"ready"}
    # the second one has not been touched
    assert after[2].engine.identity == before[2]
    dflash("up", at=two_engines).succeeded()


def test_a_key_comes_and_goes_on_all_engines_and_its_use_is_added_up(two_engines: Path) -> None:
    added = dflash("keys", "add", "alice", "--json", at=two_engines).succeeded()
    assert added.document["data"]["status"] == 200
    alice = next(key.key for key in Deployment.existing(two_engines).further_keys if key.name == "alice")
    askers = askers_of(two_engines)
    askers.key = lambda: alice
    with asking(askers, CLIENTS):
        eventually(lambda: len(askers.asked) >= 40)
    assert not askers.errors()
    used = {each.name: each for each in usage_of_keys(two_engines).usage}
    assert used["alice"].requests["200"] >= len(askers.asked)
    assert "key-0" not in used
    assert dflash("keys", "revoke", "alice", "--json", at=two_engines).succeeded().document["data"]["status"] == 401
    assert {answered(two_engines, alice) for _ in range(CLIENTS)} == {401}


def test_one_engine_is_stopped_restarted_and_checked_alone(two_engines: Path) -> None:
    ran, askers = under_load(two_engines, lambda: dflash("down", "--replica", "2", at=two_engines), least=40)
    ran.succeeded()
    assert not askers.errors()
    assert members(two_engines)[2].answered.state == "absent"
    ran, askers = under_load(two_engines, lambda: dflash("up", at=two_engines), least=40)
    ran.succeeded()
    assert not askers.errors()
    other = members(two_engines)[1].engine.identity
    dflash("restart", "--replica", "2", at=two_engines).succeeded()
    assert members(two_engines)[1].engine.identity == other
    tested = dflash("test", "--only", "auth,drafts", "--json", at=two_engines).succeeded().document["data"]
    assert set(tested["acceptance_by_engine"]) == {"engine 1", "engine 2"}
    at_end = {check["name"]: check["status"] for check in tested["checks"] if check["name"] in {"alike", "door: auth"}}
    assert at_end == {"alike": "passed", "door: auth": "passed"}


def test_one_engine_is_compared_without_drafts_while_the_other_answers(two_engines: Path) -> None:
    before = {number: member.engine.identity for number, member in members(two_engines).items()}
    short = ("--concurrency", "1", "--requests", "2", "--max-tokens", "8", "--workload", "own")
    for command in (("bench", "--baseline"), ("test", "--baseline"), ("tune", "--dry-run")):
        refused = dflash(*command, at=two_engines)
        assert refused.code == ExitCode.USAGE
        assert "--replica 1" in refused.err
    ran, askers = under_load(
        two_engines, lambda: dflash("bench", "--replica", "1", "--baseline", *short, "--json", at=two_engines), least=40
    )
    rows = ran.succeeded().document["data"]["rows"]
    assert [row["drafter"] for row in rows] == [True, False]
    assert not askers.errors()
    after = members(two_engines)
    assert {member.answered.state for member in after.values()} == {"ready"}
    assert all(member.routed for member in after.values())
    assert after[1].engine.identity != before[1]
    assert after[2].engine.identity == before[2]
    planned = dflash("tune", "--replica", "2", "--dry-run", "--json", at=two_engines)
    assert planned.succeeded().document["data"]["steps"]


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


def test_fewer_and_more_engines_while_the_others_answer(two_engines: Path) -> None:
    edit_env(two_engines, REPLICAS="1")
    dflash("up", at=two_engines).succeeded()
    assert not status(two_engines).members
    edit_env(two_engines, REPLICAS="2")
    dflash("up", at=two_engines).succeeded()
    assert {member.answered.state for member in members(two_engines).values()} == {"ready"}

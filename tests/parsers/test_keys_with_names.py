"""Keys with names before the real llama.cpp: added, counted, limited and revoked while it runs."""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from dflash_deploy.client.metrics import KeyUsage
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.operations.key_file import key
from dflash_deploy.operations.keys import usage_of_keys
from dflash_deploy.planning import plan_of
from dflash_deploy.startup.engine import endpoint_of
from tests.support.cli import dflash
from tests.support.ports import free_port

HANGS = 300.0  # seconds after which something counts as hung
CLIENTS = 16


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that `up` has started."""
    directory = tmp_path_factory.mktemp("names")
    told = ("--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", "--port", str(free_port()))
    dflash("init", *told, at=directory).succeeded()
    dflash("up", at=directory).succeeded()
    yield directory
    dflash("down", at=directory).succeeded()


def client_of(directory: Path, name: str) -> httpx.Client:
    deployment = Deployment.existing(directory)
    with endpoint_of(deployment, plan_of(deployment)) as endpoint:
        url = endpoint.url
    return httpx.Client(
        base_url=url, timeout=HANGS, headers={"Authorization": f"Bearer {key(directory, name).key.reveal()}"}
    )


def ask(client: httpx.Client, **options: object) -> httpx.Response:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Count from 1 to 10."}], "max_tokens": 16}
    return client.post("/v1/chat/completions", json={**asked, "temperature": 0, **options})


def used(directory: Path, name: str) -> KeyUsage:
    found = {each.name: each for each in usage_of_keys(directory).keys}
    return found.get(name, KeyUsage(name))


def test_a_key_comes_and_goes_while_the_engine_runs(served: Path) -> None:
    before = (served / ".dflash" / "run.json").read_text()
    added = dflash("keys", "add", "alice", "--json", at=served).succeeded()
    assert added.document["data"]["status"] == 200
    with client_of(served, "alice") as alice:
        assert ask(alice).status_code == 200
        assert alice.get("/metrics").status_code == 403
        assert dflash("keys", "revoke", "alice", "--json", at=served).succeeded().document["data"]["status"] == 401
        assert ask(alice).status_code == 401
    # `up` passes keys on and restarts nothing
    dflash("keys", "add", "bob", at=served).succeeded()
    dflash("up", at=served).succeeded()
    assert (served / ".dflash" / "run.json").read_text() == before


def test_a_key_of_prometheus_opens_metrics_alone(served: Path) -> None:
    dflash("keys", "add", "prometheus", "--scope", "metrics", at=served).succeeded()
    with client_of(served, "prometheus") as prometheus:
        assert "dflash_key_requests_total" in prometheus.get("/metrics").text
        statuses = {prometheus.request(method, "/v1/models").status_code for method in ("GET", "POST", "OPTIONS")}
        assert statuses == {403}
        assert ask(prometheus).status_code == 403


def test_use_by_name_is_what_the_answers_say(served: Path) -> None:
    names = ("carol", "dave")
    said: dict[str, Counter[str]] = {name: Counter() for name in names}
    for name in names:
        dflash("keys", "add", name, at=served).succeeded()
    for number in range(20):
        name = names[number % 2]
        with client_of(served, name) as client:
            answer = ask(client, max_tokens=5 + number, stream=number % 4 > 1, stream_options={"include_usage": True})
            text = answer.text
        if number % 4 > 1:
            events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            usage = next(event["usage"] for event in events if event.get("usage"))
        else:
            usage = json.loads(text)["usage"]
        said[name].update(prompt=usage["prompt_tokens"], generated=usage["completion_tokens"])
    for name in names:
        counted = used(served, name)
        assert (counted.prompt_tokens, counted.generation_tokens) == (said[name]["prompt"], said[name]["generated"])
        # the trial of `keys add` is not counted
        assert counted.requests == {"200": 10}
    document = dflash("keys", "usage", "--json", at=served).succeeded().document
    assert {each["name"] for each in document["data"]["keys"]} >= {"owner", *names}
    shown = dflash("keys", "usage", at=served).succeeded().out
    assert "carol" in shown
    assert "owner" in shown


def test_a_stream_whose_client_does_not_ask_is_counted_too(served: Path) -> None:
    dflash("keys", "add", "erin", at=served).succeeded()
    with client_of(served, "erin") as erin:
        text = ask(erin, stream=True, max_tokens=9).text
    assert '"usage"' not in text
    assert used(served, "erin").generation_tokens == 9


def test_limits_hold_under_many_clients(served: Path) -> None:
    dflash("keys", "add", "frank", "--in-flight", "2", at=served).succeeded()
    ready = threading.Barrier(CLIENTS)

    def one(_: int) -> httpx.Response:
        with client_of(served, "frank") as client:
            ready.wait(HANGS)
            return ask(client, max_tokens=64)

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(one, range(CLIENTS)))
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert used(served, "frank").requests == {"200": statuses[200], "429": statuses[429]}


def test_tokens_of_a_minute_run_out(served: Path) -> None:
    dflash("keys", "add", "grace", "--tokens-per-minute", "30", at=served).succeeded()
    with client_of(served, "grace") as grace:
        statuses = [ask(grace).status_code for _ in range(4)]
        wait = int(ask(grace).headers["retry-after"])
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert 1 <= wait <= 60


def test_no_key_is_shown_or_kept_beside_env(served: Path) -> None:
    dflash("keys", "add", "heidi", at=served).succeeded()
    value = key(served, "heidi").key.reveal()
    files = [file for file in (served / ".dflash").rglob("*") if file.is_file()]
    assert not [file for file in files if value.encode() in file.read_bytes()]
    for command in ("keys list", "keys list --json", "keys show heidi", "keys usage", "logs"):
        ran = dflash(*command.split(), at=served).succeeded()
        assert value not in ran.out + ran.err
    file = served / ".dflash" / "keys" / "keys.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_uid == os.geteuid()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("add", "ivan"), "another key has the name `ivan`"),
        (("add", "Ivan"), "its name is not valid"),
        (("add", "owner"), "its name is not valid"),
        (("revoke", "nobody-here"), "no key has the name `nobody-here`"),
        (("show", "nobody-here"), "no key has the name `nobody-here`"),
    ],
)
def test_what_cannot_be_done_is_one_line(served: Path, command: tuple[str, ...], said: str) -> None:
    if command[-1] == "ivan":
        dflash("keys", "add", "ivan", at=served).succeeded()
    before = (served / ".env").read_text()
    ran = dflash("keys", *command, at=served)
    assert ran.code is ExitCode.USAGE
    assert said in ran.err
    assert (served / ".env").read_text() == before

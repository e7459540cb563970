"""A fleet in containers: two hosts, each with a Docker of its own; router, door and one engine on the first."""

import json
import os
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import router_keys
from dflash_deploy.redact import generate_key
from dflash_deploy.runtime.compose import run_compose
from tests.docker.conftest import STATE
from tests.docker.test_replicas import CLIENTS, HANGS, OVERRIDE
from tests.support.askers import Askers, asking
from tests.support.cli import Ran, dflash, edit_env, initialise
from tests.support.commands import checked, eventually
from tests.support.container_engine import Engine
from tests.support.fleet_in_docker import DockerHost, data_of_docker, docker_hosts
from tests.support.fleet_lab import Lab, inside, lab, states
from tests.support.llamacpp_routes import opened
from tests.support.standin_llamacpp import ensure_server_image
from tests.support.under_domain import CLOSED, QUESTION

IMAGE = "dflash-deploy/llamacpp:fleet-under-test"
OPTIONS = ("--profile", "cpu", "--engine", "llamacpp", "--runtime", "compose", "--port", "8000")
DOOR = "http://127.0.0.1:8000"
"""The door's plain address on the leader."""


@dataclass(frozen=True)
class Fleet:
    """Two hosts after `fleet up`: what it printed, and a key that opens metrics only."""

    lab: Lab
    leader: DockerHost
    worker: DockerHost
    up: Ran
    reader: str

    @property
    def engine(self) -> str:
        """The URL of the engine on the second host, on the link between the hosts."""
        return f"http://{self.worker.host.fabric}:8000"

    @property
    def url(self) -> str:
        """The published URL of the leader."""
        return f"https://{self.leader.host.address}"

    @property
    def directory(self) -> Path:
        """The deployment directory of the leader."""
        return self.leader.host.deployment

    def key(self) -> str:
        """The owner's key."""
        return Deployment(self.lab.directory).key.reveal()

    def probe(self) -> str:
        """The key with which the router reads the load of an engine."""
        keys = router_keys(Deployment(self.lab.directory))
        assert keys is not None
        return keys.probe

    def client(self, url: str, key: str) -> httpx.Client:
        """A client with a key; an empty one is not sent."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        (root,) = self.directory.glob(".dflash/door/data/pki/authorities/*/root.crt")
        trust = ssl.create_default_context(cafile=str(root))
        return httpx.Client(base_url=url, headers=headers, verify=trust, timeout=HANGS, trust_env=False)

    def generated(self) -> tuple[int, int]:
        """The tokens that each engine has generated for the owner, the leader's first; asked on the leader."""
        with self.client(DOOR, self.reader) as http:
            texts = [http.get(f"/replicas/{number}/metrics").raise_for_status().text for number in (1, 2)]
        first, second = (_counter(text, 'dflash_key_generation_tokens_total{name="owner"}') for text in texts)
        return first, second

    def healthy(self) -> int:
        """How many engines the router finds healthy."""
        seen = json.loads((self.directory / ".dflash" / "router" / "seen.json").read_text())
        return sum(worker["healthy"] for worker in seen["workers"])

    def askers(self) -> Askers:
        """Clients of the door on the leader."""
        return Askers(DOOR, "tiny", self.key, patience=HANGS)


def _counter(text: str, name: str) -> int:
    return sum(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith(name))


def build(directory: Path) -> None:
    """Build the images of an engine and of the router of these very sources."""
    (directory / "compose.override.yaml").write_text(OVERRIDE)
    initialise(*OPTIONS, "--replicas", "2", at=directory)
    edit_env(directory, DFLASH_BASE_IMAGE=ensure_server_image(), DFLASH_IMAGE=IMAGE)
    run_compose(Deployment(directory), "build", "engine-1", "router")


@pytest.fixture(scope="module")
def fleet(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """`fleet up` of two hosts, with HTTPS for the leader's address."""
    try:
        data = data_of_docker()
    except RuntimeError as problem:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"THE FLEET IN CONTAINERS DID NOT RUN: {problem}")
    build(tmp_path_factory.mktemp("images"))
    reader = generate_key().reveal()
    with lab(tmp_path_factory.mktemp("fleet") / "lab", tag="dfc") as found:
        initialise(*OPTIONS, "--domain", found.hosts[0].address, at=found.directory)
        told = {"DFLASH_IMAGE": IMAGE, "DFLASH_API_KEYS": f"reader:{reader}:metrics"}
        edit_env(found.directory, DFLASH_BASE_IMAGE="nothing-is-built.invalid", **told)
        found.write_fleet(router=True)
        with docker_hosts(found, data, STATE.with_name("docker-hosts")) as (leader, worker):
            up = found.dflash("fleet", "up", "--json").succeeded()
            yield Fleet(found, leader, worker, up, reader)


def answered(http: httpx.Client, *messages: str) -> str:
    """The answer to the last of these messages, which are those of client and model in turn."""
    told = [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(messages)]
    body = {"model": "tiny", "messages": told, "max_tokens": 8}
    answer = http.post("/v1/chat/completions", json=body).raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def connects(host: str) -> bool:
    """Whether something accepts a connection at port 8000 there, within a second."""
    try:
        socket.create_connection((host, 8000), 1).close()
    except OSError:
        return False
    return True


def test_both_engines_answer_through_the_door_and_a_conversation_stays_on_one(fleet: Fleet) -> None:
    assert states(fleet.up.document) == ["ready", "ready"]
    assert fleet.up.document["data"]["router"] == fleet.leader.host.name
    endpoints = [row["endpoint"] for row in fleet.up.document["data"]["hosts"]]
    assert endpoints == [f"{fleet.url}/v1", f"{fleet.engine}/v1"]
    with inside(fleet.leader.host.namespace):
        before = fleet.generated()
    # a client elsewhere
    with (
        inside(fleet.lab.terminal),
        fleet.client(fleet.url, fleet.key()) as http,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda number: answered(http, f"{number} " * 40), range(16)))
    with inside(fleet.leader.host.namespace), fleet.client(DOOR, fleet.key()) as http:
        after = fleet.generated()
        assert all(now > then for now, then in zip(after, before, strict=True))
        used, told = set(), ["Count. " * 40]
        for turn in range(6):
            told += [answered(http, *told), f"Turn {turn}: count again."]
            now = fleet.generated()
            used |= {number for number in (0, 1) if now[number] > after[number]}
            after = now
    assert len(used) == 1


def bound(found: dict[str, Any]) -> set[tuple[str, str]]:
    """The addresses and ports at which Docker publishes a container."""
    ports = (found["HostConfig"]["PortBindings"] or {}).values()
    return {(one["HostIp"], one["HostPort"]) for port in ports for one in port}


def refused(fleet: Fleet, url: str) -> None:
    """Neither no key, nor an unknown one, nor one of another scope opens a generation."""
    for key in ("", "a-key-that-nobody-has", fleet.probe(), fleet.reader):
        with fleet.client(url, key) as http:
            asked = http.post("/v1/chat/completions", json={"model": "tiny", "messages": QUESTION, "max_tokens": 1})
            assert asked.status_code in {401, 403}


def test_each_published_port_is_closed_without_the_right_key(fleet: Fleet) -> None:
    leads, works = fleet.leader.containers(), fleet.worker.containers()
    assert {name: bound(one) for name, one in leads.items()} == {
        "engine-1": set(),
        "router": set(),
        "door": {("127.0.0.1", "8000"), ("", "443"), ("", "80")},
    }
    assert {name: bound(one) for name, one in works.items()} == {"engine": {(fleet.worker.host.fabric, "8000")}}
    with inside(fleet.leader.host.namespace):
        for url in (DOOR, fleet.engine):
            assert opened(url) == {("GET", "/health"), ("HEAD", "/health")}
            refused(fleet, url)
        with fleet.client(fleet.engine, fleet.probe()) as http:
            assert http.get("/metrics").status_code == 200
    with inside(fleet.lab.terminal):
        refused(fleet, fleet.url)
        with fleet.client(fleet.url, "") as http:
            assert {http.get(path).status_code for path in CLOSED} == {401}
        plain = httpx.get(f"http://{fleet.leader.host.address}/v1/models", trust_env=False)
        assert plain.headers["location"] == f"{fleet.url}/v1/models"


def test_a_neighbour_reaches_no_other_port(fleet: Fleet) -> None:
    leads = fleet.leader.containers()
    networks = [next(iter(leads[name]["NetworkSettings"]["Networks"].values())) for name in ("router", "engine-1")]
    private = [str(network["IPAddress"]) for network in networks]
    with inside(fleet.leader.host.namespace):
        assert all(connects(address) for address in private)
    with inside(fleet.lab.terminal):
        checked("ip", "route", "add", "172.16.0.0/12", "via", fleet.leader.host.address)
        # Docker passes nothing on to a container whose port is not published
        assert not any(map(connects, (fleet.leader.host.address, fleet.worker.host.address, *private)))


def test_no_key_is_in_what_docker_shows(fleet: Fleet) -> None:
    secrets = (fleet.key(), fleet.probe(), fleet.reader)
    for host in (fleet.leader, fleet.worker):
        for name, one in host.containers().items():
            shown = json.dumps(one) + host.docker("top", one["Id"], "-eo", "pid,args") + host.logs(one["Id"])
            assert [name for secret in secrets if secret in shown] == []


def test_a_killed_engine_is_left_out_and_comes_back(fleet: Fleet) -> None:
    engine, askers = fleet.worker.containers()["engine"]["Id"], fleet.askers()
    with inside(fleet.leader.host.namespace), asking(askers, CLIENTS):
        eventually(lambda: len(askers.asked) > CLIENTS)
        fleet.worker.docker("kill", engine)
        eventually(lambda: fleet.healthy() == 1)
        cut, done = len(askers.errors()), len(askers.asked)
        # only the streams that were on it
        assert cut <= CLIENTS
        eventually(lambda: len(askers.asked) > done + 40)
        fleet.worker.docker("start", engine)
        eventually(lambda: fleet.healthy() == 2)
        before = fleet.generated()[1]
        eventually(lambda: fleet.generated()[1] > before)
    assert len(askers.errors()) == cut


def test_a_host_leaves_and_returns_without_a_failed_request(fleet: Fleet) -> None:
    def route(*options: str) -> dict[str, Any]:
        prefix = ("ip", "netns", "exec", fleet.leader.host.namespace)
        told = ("fleet", "route", *options, "--json")
        ran = dflash(*told, at=fleet.directory, prefix=prefix, environment=fleet.leader.variables)
        data: dict[str, Any] = ran.succeeded().document["data"]
        return data

    address, askers = fleet.engine.removeprefix("http://"), fleet.askers()
    with inside(fleet.leader.host.namespace), asking(askers, CLIENTS):
        assert route("--without", address)["engines"] == []
        left, done = fleet.generated()[1], len(askers.asked)
        eventually(lambda: len(askers.asked) > done + 10)
        assert fleet.generated()[1] == left
        assert route()["engines"] == [address]
        eventually(lambda: fleet.healthy() == 2)
    assert not askers.errors()

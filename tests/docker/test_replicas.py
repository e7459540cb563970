"""Two llama.cpp engines, their router and their door as containers: killed, restarted, with a new key, and gone."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.plan.replicas import engine_port, router_port
from dflash_deploy.serve.router.files import read_keys
from tests.docker.test_llamacpp import SIGNAL_THE_SERVER
from tests.support.askers import WHOLE, asking
from tests.support.cli import dflash, edit_env
from tests.support.commands import eventually
from tests.support.composed import composed, docker
from tests.support.container_engine import Engine
from tests.support.llamacpp_routes import opened
from tests.support.standin_llamacpp import DEBIAN, ensure_server_image
from tests.support.two_engines import answered_at, askers_of, members, under_load

IMAGE = "dflash-deploy/llamacpp:replicas-under-test"
USER = 1000
CLIENTS = 4

HANGS = 300.0
"""Seconds after which something counts as hung."""

OVERRIDE = f"""\
services:
  router:
    build:
      args:
        BASE_IMAGE: {DEBIAN}
"""


@pytest.fixture(scope="module")
def deployment(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """`init` and `up` of two engines as the user 1000; both images are built on the way."""
    directory, base = tmp_path_factory.mktemp("replicas"), ensure_server_image()
    (directory / "compose.override.yaml").write_text(OVERRIDE)
    owner = USER if os.geteuid() == 0 else None
    with composed(directory, base, "--engine", "llamacpp", "--replicas", "2", image=IMAGE, owner=owner) as made:
        yield made


def containers(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """What `docker inspect` says of each container of the deployment, by its service."""
    of_project = f"label=com.docker.compose.project={deployment.project_name}"
    names = docker("ps", "-aq", "--no-trunc", "--filter", of_project).split()
    found = json.loads(docker("inspect", *names)) if names else []
    return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}


def engines(deployment: Deployment) -> dict[str, dict[str, Any]]:
    return {name: one for name, one in containers(deployment).items() if name.startswith("engine-")}


def test_both_engines_answer_and_status_shows_each(deployment: Deployment) -> None:
    found = dflash("status", "--json", at=deployment.directory).succeeded().document["data"]
    assert [(one["replica"], one["state"], one["routed"]) for one in found["replicas"]] == [
        (1, "ready", True),
        (2, "ready", True),
    ]
    assert (found["state"], found["router"]["state"], found["door"]["state"]) == ("ready", "running", "running")
    assert set(containers(deployment)) == {"engine-1", "engine-2", "router", "door"}


def test_only_the_door_is_published_and_it_opens_health_without_a_key(deployment: Deployment) -> None:
    found, port = containers(deployment), int(deployment.values["DFLASH_PORT"])
    bound = {
        name: one["HostConfig"]["PortBindings"] for name, one in found.items() if one["HostConfig"]["PortBindings"]
    }
    assert bound == {"door": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]}}
    url = f"http://127.0.0.1:{port}"
    assert opened(url) == {("GET", "/health"), ("HEAD", "/health")}
    keys = read_keys(deployment.state / "router" / "keys.json")
    for key in ("", "a-key-that-nobody-has", keys.probe, keys.admin):
        assert answered_at(url, key) in {401, 403}
    assert answered_at(url, deployment.key.reveal()) == 200
    # the ports that router and engines have without containers
    for private in (router_port(port), engine_port(port, 1), engine_port(port, 2)):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", private)) != 0


def test_engines_are_in_a_network_with_router_and_door(deployment: Deployment) -> None:
    found, private = containers(deployment), f"{deployment.project_name}_engines"
    inside = json.loads(docker("network", "inspect", private))[0]["Containers"]
    assert set(inside) == {one["Id"] for one in found.values()}
    for name in ("engine-1", "engine-2", "router"):
        assert list(found[name]["NetworkSettings"]["Networks"]) == [private]
    # where only this machine reaches an engine, its gateway refuses the same requests
    for member in members(deployment.directory).values():
        assert answered_at(member.endpoint.removesuffix("/v1"), "") == 401


def test_containers_are_closed_in_and_have_cores_of_their_own(deployment: Deployment) -> None:
    found = containers(deployment)
    users = set()
    for one in found.values():
        host = one["HostConfig"]
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert host["RestartPolicy"]["Name"] == "unless-stopped"
        assert one["Config"]["Healthcheck"]["Test"][0] == "CMD"
        users.add(one["Config"]["User"].split(":")[0])
    assert users == {str(deployment.env_file.stat().st_uid)}
    cores = [set(found[f"engine-{number}"]["HostConfig"]["CpusetCpus"].split(",")) for number in (1, 2)]
    if len(os.sched_getaffinity(0)) > 1:
        assert not cores[0] & cores[1]


def test_no_key_is_in_what_docker_shows(deployment: Deployment) -> None:
    keys = read_keys(deployment.state / "router" / "keys.json")
    secrets = (deployment.key.reveal(), keys.probe, keys.admin)
    for name, one in containers(deployment).items():
        shown = {
            "inspect": json.dumps(one),
            "top": docker("top", one["Id"], "-eo", "pid,args"),
            "logs": docker("logs", one["Id"]),
            "history": docker("history", "--no-trunc", one["Config"]["Image"]),
        }
        assert [(name, place) for place, text in shown.items() for secret in secrets if secret in text] == []


def test_each_engine_has_a_log_of_its_own(deployment: Deployment) -> None:
    whole = dflash("logs", at=deployment.directory).succeeded().out
    assert {"engine 1 ", "engine 2 ", "door "} <= {line.partition("|")[0] for line in whole.splitlines()}
    second = dflash("logs", "--replica", "2", at=deployment.directory).succeeded().out
    assert "dflash: llama.cpp: llama-server --model" in second
    assert "engine 1 |" not in second


def test_docker_restarts_a_killed_engine_and_the_router_takes_it_back(deployment: Deployment) -> None:
    before = containers(deployment)["engine-1"]
    askers = askers_of(deployment.directory)
    with asking(askers, CLIENTS):
        eventually(lambda: len(askers.asked) > CLIENTS)
        docker("exec", before["Id"], "python3", "-c", SIGNAL_THE_SERVER, str(int(signal.SIGKILL)))
        eventually(lambda: containers(deployment)["engine-1"]["RestartCount"] == 1)
        # the other one goes on, and this one comes back without a command
        eventually(lambda: (one := members(deployment.directory)[1]).answered.state == "ready" and one.routed)
        done = len(askers.asked)
        eventually(lambda: len(askers.asked) > done + CLIENTS)
    assert len(askers.errors()) <= CLIENTS
    assert set(askers.outcomes()) <= {WHOLE, "stream ends with an error", "stream cut off"}
    assert containers(deployment)["engine-1"]["Id"] == before["Id"]


def test_a_rolling_restart_and_a_new_key_lose_no_request(deployment: Deployment) -> None:
    before = {name: one["State"]["StartedAt"] for name, one in containers(deployment).items()}
    ran, askers = under_load(
        deployment.directory, lambda: dflash("restart", at=deployment.directory), least=20, clients=CLIENTS
    )
    ran.succeeded()
    assert not askers.errors()
    after = {name: one["State"]["StartedAt"] for name, one in containers(deployment).items()}
    assert [name for name in sorted(before) if after[name] != before[name]] == ["engine-1", "engine-2"]
    rotate = lambda: dflash("keys", "rotate", "--json", at=deployment.directory)  # noqa: E731
    ran, askers = under_load(deployment.directory, rotate, least=20, clients=CLIENTS)
    assert ran.succeeded().document["data"]["proof"] == {
        "old_key": {"before": 200, "after": 401},
        "new_key": {"after": 200},
    }
    assert not askers.errors()


def test_up_again_changes_nothing_and_changed_settings_roll(deployment: Deployment) -> None:
    before = {name: one["Id"] for name, one in containers(deployment).items()}
    assert dflash("up", "--json", at=deployment.directory).succeeded().document["data"]["changed"] is False
    assert {name: one["Id"] for name, one in containers(deployment).items()} == before
    edit_env(deployment.directory, ENABLE_THINKING="off")
    ran, askers = under_load(
        deployment.directory, lambda: dflash("up", "--json", at=deployment.directory), least=20, clients=CLIENTS
    )
    assert ran.succeeded().document["data"]["changed"] is True
    assert not askers.errors()
    after = {name: one["Id"] for name, one in containers(deployment).items()}
    assert [name for name in sorted(before) if after[name] != before[name]] == ["engine-1", "engine-2"]


def test_both_engines_are_read_through_the_door(deployment: Deployment, tmp_path: Path) -> None:
    exported = dflash("monitor", "export", str(tmp_path / "out"), "--json", at=deployment.directory).succeeded()
    key = (tmp_path / "out" / "metrics.key").read_text().strip()
    for target in exported.document["data"]["targets"]:
        assert httpx.get(f"http://{target}", timeout=HANGS).status_code == 401
        answer = httpx.get(f"http://{target}", headers={"Authorization": f"Bearer {key}"}, timeout=HANGS)
        assert "dflash_key_requests_total" in answer.text
    assert len(exported.document["data"]["targets"]) == 2
    url = f"http://127.0.0.1:{deployment.values['DFLASH_PORT']}/router/metrics"
    router = httpx.get(url, headers={"Authorization": f"Bearer {key}"}, timeout=HANGS)
    seen = [line for line in router.text.splitlines() if line.startswith("smg_worker_health{")]
    assert sum(line.endswith(" 1") for line in seen) == 2
    # the owner's key opens all, that of the router's probe only the metrics of engines and router
    # read anew: the fixture has the key from before its rotation
    owner, none = Deployment(deployment.directory).key.reveal(), "a-key-that-nobody-has"
    statuses = [httpx.get(url, headers={"X-Api-Key": none}, timeout=HANGS).status_code]
    for each in (owner, none):
        statuses.append(httpx.get(url, headers={"Authorization": f"Bearer {each}"}, timeout=HANGS).status_code)
    assert statuses == [401, 200, 401]
    assert httpx.get(url, timeout=HANGS).status_code == 401


def test_down_leaves_nothing(deployment: Deployment) -> None:
    dflash("down", at=deployment.directory).succeeded()
    assert not containers(deployment)
    networks = subprocess.run(
        ["docker", "network", "ls", "--format", "{{.Name}}"], capture_output=True, text=True, check=True
    )
    assert deployment.project_name not in networks.stdout
    assert dflash("status", "--json", at=deployment.directory).document["data"]["state"] == "absent"

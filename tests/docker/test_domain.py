"""A llama.cpp engine under a domain, with its door as a container."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.status import status
from tests.support.caddy import AUTHORITY, running
from tests.support.cli import dflash, edit_env
from tests.support.commands import eventually
from tests.support.composed import composed, docker
from tests.support.container_engine import Engine
from tests.support.ports import free_port, free_run, http_port
from tests.support.standin_llamacpp import DEBIAN, ensure_server_image
from tests.support.under_domain import (
    ELSEWHERE,
    HANGS,
    HOST,
    QUESTION,
    client,
    listens,
    logged,
    only_routes_of_applications,
    port_of,
    root_of,
    streams_over_http2,
    too_large,
    url_of,
)

IMAGE = "dflash-deploy/llamacpp:domain-under-test"
USER = 1000

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
    directory, base, ports = tmp_path_factory.mktemp("domain"), ensure_server_image(), free_run(2)
    (directory / "compose.override.yaml").write_text(OVERRIDE)
    edited = {"DFLASH_HTTPS_PORT": str(ports), "DFLASH_HTTP_PORT": str(ports + 1), "MAX_BODY_MIB": "1"}
    told, owner = ("--engine", "llamacpp", "--domain", HOST), USER if os.geteuid() == 0 else None
    with composed(directory, base, *told, image=IMAGE, owner=owner, **edited) as made:
        yield directory
    assert not containers(made)


def up(directory: Path) -> dict[str, Any]:
    data: dict[str, Any] = dflash("up", "--json", at=directory).succeeded().document["data"]
    return data


def passed(data: dict[str, Any]) -> set[str]:
    return {check["name"] for check in data["checks"] if check["status"] == "passed"}


def engine_of(directory: Path) -> str:
    """The container of the engine and its start."""
    return status(directory).engine.identity


def test_a_stream_reaches_the_openai_client_over_http2(served: Path) -> None:
    streams_over_http2(served)


def test_only_the_door_is_reachable_from_elsewhere_and_only_routes_of_applications(served: Path) -> None:
    assert not listens(ELSEWHERE, port_of(served, "DFLASH_PORT"))
    assert listens(ELSEWHERE, port_of(served, "DFLASH_HTTPS_PORT"))
    only_routes_of_applications(served)


def test_a_body_above_the_limit_is_413(served: Path) -> None:
    refused = too_large(served)
    assert (refused.status_code, refused.code) == (413, "request_too_large")


def test_the_door_is_closed_in_and_holds_no_secret(served: Path) -> None:
    found = containers(Deployment(served))
    assert set(found) == {"engine", "door"}
    door, host = found["door"], found["door"]["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert door["Config"]["User"] == found["engine"]["Config"]["User"]
    writable = {mount["Destination"] for mount in door["Mounts"] if mount["RW"]}
    assert writable == {"/run/dflash/certificates"}
    (bound,) = found["engine"]["HostConfig"]["PortBindings"].values()
    assert [one["HostIp"] for one in bound] == ["127.0.0.1"]


def test_the_access_log_has_names_of_keys_and_docker_shows_no_key(served: Path) -> None:
    dflash("keys", "add", "alice", at=served).succeeded()
    deployment = Deployment.existing(served)
    alice = next(key.key for key in deployment.further_keys if key.name == "alice")
    with client(served, alice) as http:
        assert http.get("/v1/models", params={"api_key": alice}).status_code == 200
        assert http.post("/v1/chat/completions", json={"model": "tiny", "messages": QUESTION}).status_code == 200
    eventually(lambda: len(logged(served, "alice")) == 2)
    uris = [line["request"]["uri"] for line in logged(served, "alice")]
    assert uris == ["/v1/models?api_key=[redacted]", "/v1/chat/completions"]
    files = [file for file in (served / ".dflash" / "door").glob("*") if file.is_file()]
    shown = [json.dumps(containers(deployment)), *(file.read_text() for file in files)]
    for one in containers(deployment).values():
        shown += [docker("logs", one["Id"]), docker("top", one["Id"], "-eo", "pid,args")]
    assert not [key for key in (alice, deployment.key.reveal()) for text in shown if key in text]
    dflash("keys", "revoke", "alice", at=served).succeeded()


def test_test_bench_status_and_doctor_know_the_domain(served: Path) -> None:
    tested = dflash("test", "--only", "live,auth,stream", "--json", at=served).succeeded().document["data"]
    assert {"door: certificate", "door: live", "door: auth", "door: stream"} <= passed(tested)
    before = docker("logs", containers(Deployment(served))["door"]["Id"]).count("/v1/chat/completions")
    told = ("--workload", "own", "--concurrency", "1", "--requests", "2", "--warmup", "1", "--max-tokens", "16")
    dflash("bench", *told, at=served).succeeded()
    after = docker("logs", containers(Deployment(served))["door"]["Id"]).count("/v1/chat/completions")
    assert after - before >= 3
    shown = dflash("status", "--json", at=served).succeeded().document["data"]
    assert (shown["endpoint"], shown["state"]) == (f"{url_of(served)}/v1", "ready")
    assert shown["door"]["state"] == "running"
    assert "problem" not in shown["door"]
    found = {check["name"]: check for check in dflash("doctor", "--json", at=served).document["data"]["checks"]}
    ports = {f"port {port_of(served, name)}" for name in ("DFLASH_HTTPS_PORT", "DFLASH_HTTP_PORT")}
    assert {found[name]["status"] for name in ("dns", *ports)} == {"ok"}
    assert "caddy" not in found


def test_a_certificate_by_acme_restarts_no_engine_and_survives_down(
    served: Path, tmp_path: Path, engine: Engine
) -> None:
    """A Caddy on this machine is the authority: it asks the door on port 80, and signs."""
    gateway = json.loads(docker("network", "inspect", "bridge"))[0]["IPAM"]["Config"][0]["Gateway"]
    first, own, before = engine_of(served), root_of(served).read_bytes(), port_of(served, "DFLASH_HTTP_PORT")
    signs, there = free_port(), tmp_path / "authority" / "data"
    text = AUTHORITY.format(storage=there, port=signs, unused=free_port())
    text = text.replace("https://localhost:", f"https://{gateway}:")
    with http_port() as asked, running(tmp_path / "authority", text, signs, there) as authority:
        eventually(authority.root.exists)
        own_authority = {"DFLASH_ACME_URL": f"https://{gateway}:{signs}/acme/local/directory"}
        own_authority["DFLASH_ACME_ROOT"] = str(authority.root)
        try:
            edit_env(served, DFLASH_HTTP_PORT=str(asked), **own_authority)
            assert {"door: certificate", "door: live"} <= passed(up(served))
            assert engine_of(served) == first
            assert root_of(served) == authority.root
            streams_over_http2(served)
            certificates = served / ".dflash" / "door" / "data" / "certificates"
            (signed,) = [file for file in certificates.rglob("localhost.crt") if "acme" in str(file)]
            kept = signed.read_bytes()
            dflash("down", at=served).succeeded()
            authority.process.terminate()
            authority.process.wait(HANGS)
            # nobody signs another one
            assert {"door: certificate", "door: live"} <= passed(up(served))
            assert signed.read_bytes() == kept
        finally:
            edit_env(served, DFLASH_HTTP_PORT=str(before), DFLASH_ACME_URL="", DFLASH_ACME_ROOT="")
    up(served)
    assert root_of(served).read_bytes() == own


def test_no_domain_restarts_no_engine(served: Path) -> None:
    first = engine_of(served)
    # there is no door whose image it could change
    (served / "compose.override.yaml").unlink()
    edit_env(served, DFLASH_DOMAIN="")
    assert up(served)["endpoint"] == f"http://127.0.0.1:{port_of(served, 'DFLASH_PORT')}/v1"
    assert not listens("127.0.0.1", port_of(served, "DFLASH_HTTPS_PORT"))
    assert set(containers(Deployment(served))) == {"engine"}
    assert engine_of(served) == first

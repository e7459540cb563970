"""What a Compose deployment reads from Docker."""

from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError, NotFound

from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime.compose import ComposeRuntime
from tests.support.cli import initialise
from tests.support.examined import a_plan


def test_docker_that_goes_away_meanwhile_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a client that was made while a daemon answered; nothing listens at this port any more
    client = docker.DockerClient(base_url="tcp://127.0.0.1:9", version="1.44")
    monkeypatch.setattr("dflash_deploy.runtime.compose.docker_client", lambda: client)
    with pytest.raises(EngineNotReady, match="Docker no longer responds") as gone:
        ComposeRuntime(Deployment(tmp_path), a_plan()).state()
    assert "continue with `dflash-deploy up`" in gone.value.hint
    client.close()


class Told:
    """A container as the engine's API tells of it, for what only other machines' engines say."""

    status = "running"
    short_id = "0123456789ab"

    def __init__(self, *, host: dict[str, Any] | None = None, stats: object = None) -> None:
        self._stats = stats
        self.attrs = {
            "State": {"Status": "running", "ExitCode": 0, "OOMKilled": False, "StartedAt": "now"},
            "RestartCount": 0,
            "HostConfig": {"NetworkMode": "bridge", "PortBindings": None, **(host or {})},
            "Config": {"Env": ["PATH=/bin", "DFLASH_BIND=10.0.0.1", "DFLASH_PORT=8123"]},
            "NetworkSettings": {"Networks": {"net": {}}},
        }

    def stats(self, **_: object) -> object:
        if isinstance(self._stats, Exception):
            raise self._stats
        return self._stats


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ComposeRuntime:
    initialise("--profile", "cpu", "--runtime", "compose", at=tmp_path)
    deployment = Deployment.existing(tmp_path)
    return ComposeRuntime(deployment, plan_of(deployment))


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ({"PortBindings": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8001"}]}}, "127.0.0.1:8001"),
        # one of several machines publishes nothing: it listens itself
        ({"NetworkMode": "host"}, "10.0.0.1:8123"),
        ({}, ""),
    ],
)
def test_where_a_container_listens(
    runtime: ComposeRuntime, monkeypatch: pytest.MonkeyPatch, host: dict[str, Any], address: str
) -> None:
    monkeypatch.setattr(runtime, "_container", lambda: Told(host=host))
    assert runtime.state().address == address


@pytest.mark.parametrize(
    ("stats", "memory"),
    [
        ({"memory_stats": {"usage": 100, "stats": {"inactive_file": 30}}}, 70),
        ({"memory_stats": {"usage": 100, "stats": {"total_inactive_file": 20}}}, 80),
        # cgroups without memory, an old engine, a container that went away
        ({"memory_stats": {"usage": 100}}, 100),
        ({"memory_stats": {}}, None),
        (APIError("client version 1.40 is too old"), None),
        (NotFound("no such container"), None),
    ],
)
def test_memory_is_told_where_it_can_be(
    runtime: ComposeRuntime, monkeypatch: pytest.MonkeyPatch, stats: object, memory: int | None
) -> None:
    monkeypatch.setattr(runtime, "_container", lambda: Told(stats=stats))
    assert runtime.memory() == memory

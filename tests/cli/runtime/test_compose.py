"""What a Compose deployment reads from Docker."""

from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError, NotFound

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.planning import plan_of, plan_to_stop
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

    def __init__(self, *, host: dict[str, Any] | None = None, stats: object = None, top: object = None) -> None:
        self._stats, self._top = stats, top
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

    def top(self, **_: object) -> object:
        if isinstance(self._top, Exception):
            raise self._top
        return self._top


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


# The `docker` command, as Compose answers to an empty `.env` (recorded from Compose 5.6.1).
DOCKER = """#!/bin/sh
echo "$PWD: $*" >> {calls}
case "$*" in *" -f "*) echo "required variable MODEL_HOST_PATH is missing a value"; exit 1;; esac
exit {code}
"""


@pytest.mark.parametrize("content", ["", "\0" * 100], ids=["empty", "NUL bytes"])
def test_down_needs_no_settings(
    runtime: ComposeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    log, program = tmp_path / "calls", tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(DOCKER.format(calls=log, code=0))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    monkeypatch.setattr(ComposeRuntime, "_container", lambda _: Told())
    (tmp_path / ".env").write_text(content)
    deployment = Deployment(tmp_path)
    stopping = ComposeRuntime(deployment, plan_to_stop(deployment))
    assert stopping.down()
    lines = [line for line in log.read_text().splitlines() if " down " in line]
    assert len(lines) == 2
    assert lines[-1] == f"/: compose --project-name {deployment.project_name} down --timeout 45"
    program.write_text(DOCKER.format(calls=log, code=1))
    if not content:
        with pytest.raises(EngineNotReady, match="MODEL_HOST_PATH"):
            stopping.down()

"""The runtime of settings with one engine, after settings with several."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import CADDYFILE, door_directory
from dflash_deploy.errors import EngineMissing
from dflash_deploy.runtime import compose
from dflash_deploy.runtime.compose import ComposeRuntime, ComposeSeveral
from dflash_deploy.runtime.select import runtime_for
from tests.support.examined import a_plan


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """As a first `up` with several engines leaves it if no engine became ready."""
    made = Deployment(tmp_path)
    door_directory(made).mkdir(parents=True)
    (door_directory(made) / CADDYFILE).touch()
    return made


def docker_has(monkeypatch: pytest.MonkeyPatch, *labels: dict[str, str] | None) -> list[Any]:
    """Let Docker answer with containers of these labels; return what it is asked."""
    asked: list[Any] = []

    def containers(**query: Any) -> list[dict[str, Any]]:
        asked.append(query)
        return [{"Id": "0123", "Labels": one} for one in labels]

    client = SimpleNamespace(api=SimpleNamespace(containers=containers))
    monkeypatch.setattr(compose, "docker_client", lambda: client)
    return asked


@pytest.mark.parametrize(
    ("labels", "several"),
    [
        ([{"com.docker.compose.service": "router"}, {"dev.dflash.door": "ab"}], True),
        # an interrupted `down` has removed the door
        ([{"dev.dflash.version": "1", "dev.dflash.replica": "2"}], True),
        # one engine under a domain
        ([{"com.docker.compose.service": "engine"}, {"dev.dflash.door": "ab"}], False),
        # one engine, and a service of the user's override
        ([{"dev.dflash.version": "1"}, None], False),
        ([], False),
    ],
)
def test_several_engines_that_were_never_ready_are_found(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, labels: list[dict[str, str] | None], several: bool
) -> None:
    asked = docker_has(monkeypatch, *labels)
    runtime = runtime_for(deployment, a_plan(runtime="compose"))
    assert type(runtime) is (ComposeSeveral if several else ComposeRuntime)
    wanted = [f"com.docker.compose.project={deployment.project_name}"]
    assert asked == [{"all": True, "filters": {"label": wanted}}]


def test_docker_is_not_asked_about_engines_that_never_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = docker_has(monkeypatch, {"dev.dflash.door": "ab"})
    assert type(runtime_for(Deployment(tmp_path), a_plan(runtime="compose"))) is ComposeRuntime
    assert not asked


def test_without_docker_there_is_one_engine(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise EngineMissing("Docker is not installed", hint="install it")

    monkeypatch.setattr(compose, "docker_client", missing)
    assert type(runtime_for(deployment, a_plan(runtime="compose"))) is ComposeRuntime

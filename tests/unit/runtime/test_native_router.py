"""The native router: what a change of must restart it."""

from dataclasses import replace
from importlib import metadata, util
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import router_directory
from dflash_deploy.errors import EngineMissing
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.runtime import native
from dflash_deploy.runtime.native import NativeRouter
from dflash_deploy.runtime.native_process import Invocation, NativeProcess
from dflash_deploy.serve.router.files import KEYS
from tests.support.machines import RECORDED


def test_a_missing_router_names_the_command_for_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    monkeypatch.setattr(native, "install_command", "pipx runpip {}".format)
    plan = plan_deployment(RECORDED["cpu"], Choice(profile="cpu", runtime="native", replicas=2), load_catalog())
    with pytest.raises(EngineMissing, match="SMG is not installed") as missing:
        NativeRouter(Deployment(tmp_path), plan).preflight()
    assert missing.value.hint.startswith("pipx runpip router ")


def test_other_keys_restart_it_because_it_reads_them_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = Choice(profile="cpu", engine="llamacpp", runtime="native", replicas=2)
    plan = plan_deployment(replace(RECORDED["cpu"], cpus=8), choice, load_catalog())
    create(Deployment(tmp_path), plan)
    deployment = Deployment(tmp_path)
    started: list[str] = []

    def start(self: NativeProcess, launch: Invocation, narrate: object) -> bool:
        started.append(launch.config)
        return True

    monkeypatch.setattr(NativeProcess, "start", start)
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.3")
    router = NativeRouter(deployment, plan)
    for _ in range(2):
        router.start(lambda text: None)
    (router_directory(deployment) / KEYS).unlink()
    router.start(lambda text: None)
    first, same, other = started
    assert first == same != other

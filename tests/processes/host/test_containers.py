"""What an engine says of itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.host import containers
from dflash_deploy.host.containers import engine_of, find_container_engine
from tests.support.recorded import plays, recorded


def info(name: str) -> dict[str, Any]:
    """A recorded `docker info`."""
    document: dict[str, Any] = json.loads(recorded("docker-info", name))
    return document


@pytest.fixture(autouse=True)
def _no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.mark.parametrize(
    ("name", "version", "compose", "access"),
    [
        ("engine-28-nvidia-runtime.json", "28.3.3", "5.2.0", "runtime"),
        ("engine-29-cdi.json", "29.2.1", "5.2.0", "cdi"),
        ("engine-29-plain.json", "29.6.1", "5.2.0", ""),
        ("desktop-28-nvidia.json", "28.2.2", "5.2.0", "runtime"),
        ("desktop-28-webgpu.json", "28.3.2", "5.2.0", ""),
        ("engine-20-rootless-no-compose.json", "20.10.24+dfsg1", None, ""),
    ],
)
def test_engine_compose_and_gpu_access(name: str, version: str, compose: str | None, access: str) -> None:
    engine = engine_of(info(name))
    assert (engine.version, engine.compose, engine.gpu_access) == (version, compose, access)


def test_architecture_root_and_kind() -> None:
    engine = engine_of(info("engine-28-nvidia-runtime.json"))
    assert (engine.architecture, engine.root, engine.local) == ("aarch64", "/var/lib/docker", True)
    assert engine_of(info("engine-20-rootless-no-compose.json")).rootless
    desktop = engine_of(info("desktop-28-nvidia.json"))
    assert desktop.desktop
    assert not desktop.local


def test_an_engine_elsewhere_is_not_judged_by_the_files_of_this_machine() -> None:
    assert not engine_of(info("engine-29-cdi.json"), host="ssh://gpu-box").local


def test_a_specification_on_disk_counts_where_the_engine_lists_directories_alone(tmp_path: Path) -> None:
    said = info("engine-29-plain.json") | {"CDISpecDirs": [str(tmp_path), "/nowhere"]}
    (tmp_path / "other.yaml").write_text("kind: amd.com/gpu\n")
    assert engine_of(said).gpu_access == ""
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert engine_of(said).gpu_access == "cdi"
    assert engine_of(said, host="ssh://gpu-box").gpu_access == ""


def test_the_toolkit_alone_serves_gpus_without_a_registered_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / containers.HOOK).write_text("#!/bin/sh\n")
    (tmp_path / containers.HOOK).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert engine_of(info("engine-29-plain.json")).gpu_access == "runtime"


def test_the_command_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(tmp_path, "docker-info", "engine-28-nvidia-runtime.json", body=f'echo "$@" >> {tmp_path}/calls')
    (tmp_path / "docker-info").rename(tmp_path / "docker")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    engine = find_container_engine()
    assert engine is not None
    assert engine.host == containers.DEFAULT_HOST
    assert (tmp_path / "calls").read_text().splitlines() == ["info --format {{json .}}"]


def test_a_client_without_an_engine_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(tmp_path, "docker-info", "no-engine.json", code=1)
    (tmp_path / "docker-info").rename(tmp_path / "docker")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_container_engine() is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_container_engine() is None

"""Who holds GPU memory."""

from pathlib import Path

import pytest

from dflash_deploy.host.gpu import GpuProcess, container_of, gpu_processes
from tests.support.recorded import plays

IDENTITY = "4f1c" * 16


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/system.slice/docker-{IDENTITY}.scope",
        f"12:pids:/docker/{IDENTITY}\n0::/\n",
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{IDENTITY}.scope/container",
    ],
)
def test_a_process_knows_its_container(tmp_path: Path, cgroup: str) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "cgroup").write_text(cgroup)
    assert container_of(42, proc=tmp_path) == IDENTITY


def test_a_process_outside_has_none(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "cgroup").write_text("0::/user.slice/session-3.scope\n")
    assert container_of(42, proc=tmp_path) == ""
    assert container_of(43, proc=tmp_path) == ""


def test_processes_with_their_memory_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = plays(tmp_path, "nvidia-smi", "compute-apps.txt")
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho {IDENTITY} comfyui\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "6975").mkdir()
    (tmp_path / "6975" / "cgroup").write_text(f"0::/system.slice/docker-{IDENTITY}.scope")
    assert gpu_processes(program, proc=tmp_path) == (
        GpuProcess(6975, "VLLM::EngineCore", 6104 * 2**20, "comfyui"),
        GpuProcess(286138, "/usr/bin/baobab", 22 * 2**20),
    )


def test_memory_that_is_not_said_is_none(tmp_path: Path) -> None:
    program = plays(tmp_path, "nvidia-smi", "compute-apps-wsl.txt")
    assert gpu_processes(program, proc=tmp_path) == (GpuProcess(524, "", None),)


def test_no_nvidia_smi_no_processes(tmp_path: Path) -> None:
    assert gpu_processes(str(tmp_path / "absent")) == ()

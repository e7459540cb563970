"""What runs the engine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.doctor import container
from dflash_deploy.host.ask import ContainerEngine, engine_of
from tests.support.examined import NVIDIA_DOCKER, a_machine, a_plan, a_subject, by_name, only
from tests.support.machines import CPU_ENGINE
from tests.support.machines import machine as bare
from tests.support.recorded import recorded


@pytest.fixture(autouse=True)
def _no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def test_an_engine_that_is_new_enough() -> None:
    checks = by_name(container.runs_it, a_subject())
    assert [check.status for check in checks.values()] == ["ok", "ok"]
    assert "28.2.2" in checks["container engine"].saw
    assert "2.39.1" in checks["compose"].saw


@pytest.mark.parametrize(
    ("version", "compose", "statuses"),
    [
        ("20.10.24+dfsg1", "2.20.2+ds1-0ubuntu1~22.04.1", ["ok", "ok"]),
        ("19.03.15", "v2.40.3-desktop.1", ["no", "ok"]),
        ("28.2.2", "2.19.1", ["ok", "no"]),
        ("28.2.2", None, ["ok", "no"]),
    ],
)
def test_versions(version: str, compose: str | None, statuses: list[str]) -> None:
    found = replace(NVIDIA_DOCKER, version=version, compose=compose)
    checks = by_name(container.runs_it, a_subject(facts=a_machine(engine=found)))
    assert [check.status for check in checks.values()] == statuses


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("engine-28-nvidia-runtime.json", "ok", "NVIDIA runtime"),
        ("engine-29-cdi.json", "ok", "CDI"),
        ("desktop-28-nvidia.json", "ok", "NVIDIA runtime"),
        ("engine-29-plain.json", "no", "neither"),
        ("desktop-28-webgpu.json", "no", "no GPU on Linux"),
    ],
)
def test_gpus_in_containers(name: str, status: str, says: str) -> None:
    found = engine_of(json.loads(recorded("docker-info", name)))
    check = only(container.gpus_in_containers, a_subject(facts=a_machine(engine=found)))
    assert check.status == status
    assert says in check.saw


@pytest.mark.parametrize(("version", "status"), [("24.0.9", "no"), ("28.3.3", "warning"), ("29.0.0-rc.1", "ok")])
def test_cdi_needs_a_newer_engine(version: str, status: str) -> None:
    found = replace(NVIDIA_DOCKER, version=version, gpu_access="cdi")
    assert only(container.gpus_in_containers, a_subject(facts=a_machine(engine=found))).status == status


def test_without_a_gpu_in_the_plan_nobody_asks() -> None:
    subject = a_subject(a_plan(cpu=True), a_machine(engine=replace(NVIDIA_DOCKER, gpu_access="")))
    assert by_name(container.gpus_in_containers, subject) == {}


def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    script = tmp_path / "docker"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_the_probes_arguments() -> None:
    by_flag = container.probe_command(NVIDIA_DOCKER, "image:1", "probe")
    assert by_flag[-4:] == ["--entrypoint", "nvidia-smi", "image:1", "--list-gpus"]
    assert "--gpus" in by_flag
    assert by_flag[by_flag.index("--pull") + 1] == "never"
    by_device = container.probe_command(replace(NVIDIA_DOCKER, gpu_access="cdi"), "image:1", "probe")
    assert by_device[by_device.index("--device") + 1] == "nvidia.com/gpu=all"


def test_the_installed_vllm() -> None:
    cpu = a_plan(runtime="native", cpu=True)
    installed = bare(native_engine=CPU_ENGINE)
    assert only(container.runs_it, a_subject(cpu, installed)).status == "ok"
    assert only(container.runs_it, a_subject(cpu, bare())).status == "no"
    check = only(container.runs_it, a_subject(a_plan(runtime="native"), installed))
    assert check.status == "no"
    assert "CPU build" in check.saw


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("unix:///var/run/docker.sock", "ok"),
        ("unix:///run/user/1000/docker.sock", "ok"),
        ("tcp://127.0.0.1:2375", "ok"),
        ("ssh://bigbox", "no"),
        ("ssh://me@10.0.0.7:22", "no"),
        ("tcp://10.0.0.7:2376", "no"),
    ],
)
def test_a_docker_elsewhere_is_refused(host: str, status: str) -> None:
    """A context of ssh:// was good for doctor, and `up` went on to download 18 GB here (docker/compose#8484)."""
    checks = by_name(container.runs_it, a_subject(facts=a_machine(engine=replace(NVIDIA_DOCKER, host=host))))
    assert checks["container engine"].status == status
    assert host in checks["container engine"].saw


def info(name: str, **more: object) -> ContainerEngine:
    """A recorded Docker with other values."""
    return engine_of({**json.loads(recorded("docker-info", name)), **more})


@pytest.mark.parametrize(
    ("root", "snap"),
    [
        ("/var/snap/docker/common/var-lib-docker", True),
        ("/var/snap/docker/2963/data", True),
        ("/var/snap/microk8s-docker/common", True),
        ("/var/lib/docker", False),
        ("/data/var/snap/docker", False),
    ],
)
def test_the_snap_gets_its_own_advice(root: str, snap: bool) -> None:
    found = info("engine-28-nvidia-runtime.json", DockerRootDir=root)
    check = by_name(container.runs_it, a_subject(facts=a_machine(engine=found)))["container engine"]
    assert ("snap remove docker" in check.fix, check.status) == (snap, "warning" if snap else "ok")


@pytest.mark.parametrize("options", [["name=seccomp,profile=builtin", "name=rootless"], ["name=rootless"], None, []])
def test_a_rootless_docker_gets_its_own_advice(options: list[str] | None) -> None:
    found = info("engine-29-plain.json", SecurityOptions=options)
    subject, rootless = a_subject(facts=a_machine(engine=found)), bool(options)
    assert ("no-cgroups" in only(container.gpus_in_containers, subject).fix) is rootless
    assert ("rootless Docker" in by_name(container.runs_it, subject)["container engine"].saw) is rootless


@pytest.mark.parametrize(
    ("system", "kernel", "no_gpu"),
    [
        ("Docker Desktop", "6.8.0-45-generic", True),
        ("Docker Desktop (containerized)", "6.8.0-45-generic", True),
        ("Docker Desktop", "5.15.167.4-microsoft-standard-WSL2", False),
        ("Ubuntu 24.04.1 LTS", "6.8.0-45-generic", False),
    ],
)
def test_docker_desktop_has_no_gpu_on_linux(
    system: str, kernel: str, no_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.release", lambda: kernel)
    found = info("engine-29-plain.json", OperatingSystem=system)
    check = only(container.gpus_in_containers, a_subject(facts=a_machine(engine=found)))
    assert ("Docker Desktop gives containers no GPU" in check.saw) is no_gpu
    assert ("docker context use default" in check.fix) is no_gpu
    assert ("NVIDIA Container Toolkit" in check.fix) is not no_gpu

"""What an engine says of itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.doctor import container
from dflash_deploy.errors import EngineMissing
from dflash_deploy.host import ask
from dflash_deploy.host.ask import container_engine, engine_of, find_container_engine
from dflash_deploy.host.machine import read_facts
from dflash_deploy.runtime.compose import ComposeRuntime
from tests.support.examined import a_plan, a_subject, only
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
    (tmp_path / ask.HOOK).write_text("#!/bin/sh\n")
    (tmp_path / ask.HOOK).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert engine_of(info("engine-29-plain.json")).gpu_access == "runtime"


def test_the_command_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(tmp_path, "docker-info", "engine-28-nvidia-runtime.json", body=f'echo "$@" >> {tmp_path}/calls')
    (tmp_path / "docker-info").rename(tmp_path / "docker")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    engine = find_container_engine()
    assert engine is not None
    assert engine.host == ask.DEFAULT_HOST
    assert (tmp_path / "calls").read_text().splitlines() == ["info --format {{json .}}"]


def test_a_client_without_an_engine_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(tmp_path, "docker-info", "no-engine.json", code=1)
    (tmp_path / "docker-info").rename(tmp_path / "docker")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_container_engine() is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_container_engine() is None


DESKTOP, ROOTLESS = "unix:///home/ada/.docker/desktop/docker.sock", "unix:///run/user/1000/docker.sock"
SOCKET = "unix:///var/run/docker.sock"
ADVICE, GROUP, START = "install Docker Engine", "sudo usermod -aG docker $USER", "`systemctl start docker`"
UNSET = "`docker context use default` and unset DOCKER_HOST"
DENIED = f"permission denied while trying to connect to the Docker daemon socket at {SOCKET}"


def stopped(at: str) -> str:
    """The words of Docker 28 without a daemon."""
    return f"Cannot connect to the Docker daemon at {at}. Is the docker daemon running?"


def errors(said: str) -> str:
    """`docker info` without a server, and with the context `default`."""
    document = json.dumps({"ServerErrors": [said], "ClientInfo": {"Context": "default"}})
    return f"""test "$1" = info && echo '{document}'; exit 1"""


@pytest.mark.parametrize(
    ("answers", "says", "hint", "host"),
    [
        # Podman's command in the place of Docker's (podman-container-tools/podman#25196)
        ('case "$1" in --version) echo "podman version 5.4.2";; *) echo "{}";; esac', "Podman", ADVICE, ""),
        ("""echo "Emulate Docker CLI using podman." >&2; echo '{"host": {}}'""", "Podman", ADVICE, ""),
        ("""test "$1" = info && echo '{"host": {"os": "linux"}}' || echo podman""", "Podman", ADVICE, ""),
        ('test "$1" = info && echo "Error: unable to connect to Podman socket" >&2; exit 125', "Podman", ADVICE, ""),
        # the group of the socket, in the words of several releases
        (errors(DENIED), DENIED, GROUP, ""),
        (errors(f"Got {DENIED}"), DENIED, GROUP, ""),
        (errors("dial unix /var/run/docker.sock: connect: permission denied"), "dial unix", GROUP, SOCKET),
        ('test "$1" = info && echo "docker: Permission denied." >&2; exit 1', "Permission denied", GROUP, ""),
        # another machine, which is no daemon to start here
        (errors("error during connect: Permission denied (publickey)"), "ssh://bigbox", UNSET, "ssh://bigbox"),
        (errors("Cannot connect"), "tcp://10.0.0.7:2376", UNSET, "tcp://10.0.0.7:2376"),
        ("exit 1", "ssh://ada@10.0.0.7:22", UNSET, "ssh://ada@10.0.0.7:22"),
        ('test "$1" = context && echo ssh://bigbox; exit 1', "Docker at ssh://bigbox does not respond", UNSET, ""),
        # stopped: each kind starts in its own way
        (errors(stopped(SOCKET)), stopped(SOCKET), START, ""),
        (errors(stopped(DESKTOP)), stopped(DESKTOP), "`systemctl --user start docker-desktop`", DESKTOP),
        (f'test "$1" = context && echo {DESKTOP}; exit 1', "not respond", "--user start docker-desktop`", ""),
        (errors(stopped(ROOTLESS)), stopped(ROOTLESS), "`systemctl --user start docker`", ""),
        ("exit 1", "does not respond", "`systemctl --user start docker`", ROOTLESS),
        ('test "$1" = info && echo "docker: broken" >&2; exit 1', "docker: broken", START, ""),
        ("exit 1", "does not respond", START, ""),
    ],
)
def test_what_keeps_docker_from_answering_is_told_apart(
    answers: str, says: str, hint: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(tmp_path, monkeypatch, answers, host)
    with pytest.raises(EngineMissing) as missing:
        container_engine()
    assert says in missing.value.message
    assert hint in missing.value.hint
    # `up` and `doctor` say the same, and where another runtime helps, they name it
    with pytest.raises(EngineMissing) as refused:
        ComposeRuntime(Deployment(tmp_path), a_plan(), "engine").preflight()
    assert refused.value.message == missing.value.message
    assert refused.value.hint.startswith(missing.value.hint)
    check = only(container.runs_it, a_subject(facts=read_facts()))
    assert (check.status, check.saw) == ("no", missing.value.message)
    assert check.fix.startswith(f"{missing.value.hint}, or run `")
    assert check.fix.endswith("` and `dflash-deploy init --force --runtime native`")


def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: str, host: str = "", name: str = "bin") -> Path:
    """A `docker` that answers so, and the file with its calls."""
    place = tmp_path / name
    place.mkdir(parents=True)
    (place / "docker").write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/calls\n{answers}\n')
    (place / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_HOST", host)
    return tmp_path / "calls"


def test_the_snap_starts_in_its_own_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(tmp_path, monkeypatch, errors(stopped(SOCKET)), name="snap/bin")
    with pytest.raises(EngineMissing) as missing:
        container_engine()
    assert missing.value.hint == "start it with `sudo snap start docker`"


@pytest.mark.parametrize("host", ["", ROOTLESS, "ssh://bigbox"])
def test_a_docker_that_hangs_is_asked_once(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "DOCKER_TIMEOUT", 1.5)
    calls = scripted(tmp_path, monkeypatch, "sleep 60", host)
    with pytest.raises(EngineMissing) as missing:
        container_engine()
    assert "does not respond" in missing.value.message
    assert calls.read_text().split() == ["info"]
    # doctor has the words of the facts, and no state of an engine to ask for
    runtime = ComposeRuntime(Deployment(tmp_path), a_plan(), "engine")
    subject = a_subject(facts=read_facts(), runtime=runtime)
    assert only(container.runs_it, subject).saw == missing.value.message
    assert subject.engine_state.phase == "absent"
    assert calls.read_text().split() == ["info", "info"]
    with pytest.raises(EngineMissing):
        runtime.preflight()
    assert calls.read_text().split() == ["info"] * 3


def test_a_docker_that_cannot_be_run_is_no_matter_of_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(tmp_path, monkeypatch, "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    (tmp_path / "bin/docker").write_text("")
    (tmp_path / "bin/docker").chmod(0o644)
    with pytest.raises(EngineMissing) as missing:
        container_engine()
    assert "usermod" not in missing.value.hint
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EngineMissing, match="Docker is not installed"):
        container_engine()

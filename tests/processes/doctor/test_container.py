"""The probe of GPUs in containers, with a scripted `docker`."""

from pathlib import Path

import pytest

from dflash_deploy.doctor import container
from tests.support.examined import a_machine, a_subject, by_name, only


@pytest.fixture(autouse=True)
def _no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    script = tmp_path / "docker"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_the_probe_never_fetches_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker(tmp_path, monkeypatch, f'echo "$1" >> {tmp_path}/calls; exit 1')
    checks = by_name(container.gpus_in_containers, a_subject(probe=True))
    assert checks["gpu probe"].status == "skipped"
    assert set((tmp_path / "calls").read_text().split()) == {"image"}


def test_the_probe_counts_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker(tmp_path, monkeypatch, "echo 'GPU 0: NVIDIA H100 80GB HBM3'")
    assert by_name(container.gpus_in_containers, a_subject(probe=True))["gpu probe"].status == "ok"


def test_the_probe_quotes_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
    docker(
        tmp_path, monkeypatch, f"test $1 = image && exit 0; echo '{said}' >&2; echo >&2; echo Run --help >&2; exit 125"
    )
    check = by_name(container.gpus_in_containers, a_subject(probe=True))["gpu probe"]
    assert check.status == "no"
    assert said in check.saw


PERMISSION = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
STOPPED = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock"
ADVICE, START = "install Docker Engine", "systemctl start docker"


@pytest.mark.parametrize(
    ("answers", "says", "hint"),
    [
        # Podman's command in the place of Docker's (podman-container-tools/podman#25196)
        ('case "$1" in --version) echo "podman version 5.4.2";; *) echo "{}";; esac', "Podman", ADVICE),
        ("""echo "Emulate Docker CLI using podman." >&2; echo '{"host": {}}'""", "Podman", ADVICE),
        (
            f"""test "$1" = info && echo '{{"ServerErrors": ["{PERMISSION}"]}}'; exit 1""",
            PERMISSION,
            "usermod -aG docker",
        ),
        (f"""test "$1" = info && echo '{{"ServerErrors": ["{STOPPED}"]}}'; exit 1""", STOPPED, START),
        ('test "$1" = info && echo "docker: broken" >&2; exit 1', "docker: broken", START),
        ("exit 1", "does not respond", START),
    ],
)
def test_what_keeps_docker_from_answering_is_told_apart(
    answers: str, says: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker(tmp_path, monkeypatch, answers)
    check = only(container.runs_it, a_subject(facts=a_machine(engine=None)))
    assert check.status == "no"
    assert says in check.saw
    assert hint in check.fix
    assert "native" in check.fix

"""The probe of GPUs in containers, with a scripted `docker`."""

from pathlib import Path

import pytest

from dflash_deploy.doctor import container
from tests.support.examined import a_subject, by_name


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

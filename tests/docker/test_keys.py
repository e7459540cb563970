"""The key of a container: searched wherever Docker keeps or shows something, and replaced under the running engine.

That vLLM's container shows none either: tests/docker/test_compose.py.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env
from tests.support.composed import composed, container_of, docker, key_is_hidden, shown_by_docker
from tests.support.container_engine import Engine
from tests.support.faults import Fault, Patient, shows
from tests.support.onlooker import seen_by_another_user
from tests.support.standin_llamacpp import ensure_server_image

IMAGE = "dflash-deploy/llamacpp:keys-under-test"

# A sentence of dflash_deploy/serve/secrets.py, which the image carries: a search of the layers must find it.
IN_THE_LAYERS = b"The variables that never appear in an argument list"


def found_in(stream: IO[bytes], *wanted: bytes) -> set[bytes]:
    """Which of these occur in a stream of any length."""
    found, tail = set[bytes](), b""
    while block := stream.read(2**22):
        text = tail + block
        found |= {one for one in wanted if one in text}
        tail = text[-max(map(len, wanted)) :]
    return found


@pytest.fixture(scope="module")
def deployment(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """`init` and `up` with Compose, the image made of these very sources with this key lying beside them."""
    with composed(tmp_path_factory.mktemp("keys"), ensure_server_image(), "--engine", "llamacpp", image=IMAGE) as made:
        yield made


def key_of(deployment: Deployment) -> str:
    """The key as it is now."""
    return Deployment(deployment.directory).key.reveal()


def statuses_of(deployment: Deployment, *keys: str) -> list[int]:
    """What the endpoint answers to each of these keys."""
    url = f"http://127.0.0.1:{deployment.values['DFLASH_PORT']}/v1/models"
    return [httpx.get(url, headers={"Authorization": f"Bearer {key}"}, timeout=60).status_code for key in keys]


def test_the_key_is_nowhere_that_docker_shows(deployment: Deployment) -> None:
    key_is_hidden(deployment, IMAGE)


def test_the_key_is_in_no_layer_of_the_image(deployment: Deployment) -> None:
    wanted = (IN_THE_LAYERS, key_of(deployment).encode())
    with subprocess.Popen(["docker", "save", IMAGE], stdout=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        assert found_in(saving.stdout, *wanted) == {IN_THE_LAYERS}
    assert saving.returncode == 0


def test_another_user_of_the_machine_sees_no_key(deployment: Deployment) -> None:
    seen = seen_by_another_user()
    assert "/models/target" in seen, "the engine's processes are not among those that are seen"
    assert key_of(deployment) not in seen


OLD_KEY = Fault(
    "a client that still uses the key from before `keys rotate`",
    "a real container",
    "test --only models",
    20,
    ("answered 401",),
    ExitCode.SMOKE_TEST,
    "the new key",
)


@shows(OLD_KEY)
def test_a_rotated_key_reaches_the_container_and_the_old_one_is_dead(deployment: Deployment, tmp_path: Path) -> None:
    old, before = key_of(deployment), container_of(deployment)
    ran = dflash("keys", "rotate", "--json", at=deployment.directory).succeeded()
    new, after = key_of(deployment), container_of(deployment)
    assert ran.document["data"]["proof"] == {"old_key": {"before": 200, "after": 401}, "new_key": {"after": 200}}
    assert "container is created again" in ran.err
    # a container that was only restarted would have a configuration that no longer fits compose.yaml
    assert after != before
    assert docker("exec", after, "cat", "/run/secrets/dotenv") == (deployment.directory / ".env").read_text()
    assert statuses_of(deployment, old, new) == [401, 200]
    shown = {**shown_by_docker(deployment, IMAGE), "rotate": ran.out + ran.err}
    assert [place for place, text in shown.items() if old in text or new in text] == []
    url, file = f"http://127.0.0.1:{deployment.values['DFLASH_PORT']}", tmp_path / "key"
    client, told = Patient(tmp_path), ("--url", url, "--model", "tiny", "--key-file", str(file))
    file.write_text(old)
    client.notices(OLD_KEY, *told)
    file.write_text(new)
    client.recovers(OLD_KEY, *told)
    # whoever goes on without dflash-deploy changes nothing
    subprocess.run(["docker", "compose", "up", "-d"], cwd=deployment.directory, check=True, capture_output=True)
    assert container_of(deployment) == after


def test_a_key_rotated_while_nothing_runs_is_in_force_at_the_next_start(deployment: Deployment) -> None:
    old, before = key_of(deployment), container_of(deployment)
    # stopped behind our back, and started the same way: the mount is made anew with the container's process
    docker("stop", before)
    data = dflash("keys", "rotate", "--json", at=deployment.directory).succeeded().document["data"]
    assert data["restarted"] is False
    docker("start", before)
    assert docker("exec", before, "cat", "/run/secrets/dotenv") == (deployment.directory / ".env").read_text()
    assert old not in docker("exec", before, "cat", "/run/secrets/dotenv")


def test_a_restart_that_does_not_begin_says_that_the_old_key_still_opens(deployment: Deployment) -> None:
    dflash("up", at=deployment.directory).succeeded()
    old, before, base = key_of(deployment), container_of(deployment), deployment.values["DFLASH_BASE_IMAGE"]
    # an image that is not here, and cannot be made
    edit_env(
        deployment.directory, DFLASH_IMAGE="dflash-deploy/llamacpp:nowhere", DFLASH_BASE_IMAGE="nowhere.invalid/x:1"
    )
    try:
        ran = dflash("keys", "rotate", at=deployment.directory)
    finally:
        edit_env(deployment.directory, DFLASH_IMAGE=IMAGE, DFLASH_BASE_IMAGE=base)
    assert ran.code is ExitCode.NOT_READY
    assert "the old key is STILL VALID" in ran.err
    assert container_of(deployment) == before
    assert statuses_of(deployment, old, key_of(deployment)) == [200, 401]


def test_an_engine_that_dies_with_the_new_key_is_explained_and_shows_none(deployment: Deployment) -> None:
    old = key_of(deployment)
    edit_env(deployment.directory, EXTRA_ARGS="--seed none")
    try:
        ran = dflash("keys", "rotate", at=deployment.directory)
        assert ran.code is ExitCode.NOT_READY
        assert "the old key is no longer valid; continue with `dflash-deploy up`" in ran.err
        logs = docker("logs", container_of(deployment))
        assert 'error while handling argument "--seed"' in logs
        for key in (old, key_of(deployment)):
            assert key not in logs + ran.out + ran.err
    finally:
        edit_env(deployment.directory, EXTRA_ARGS="")

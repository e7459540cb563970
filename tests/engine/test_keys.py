"""`keys rotate` under the real engine: the old key dies, the new one opens, and it may be ended on the way."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.redact import Secret
from tests.support.cli import dflash, edit_env
from tests.support.commands import wait_until
from tests.support.onlooker import seen_by_another_user
from tests.support.server import Server
from tests.support.streams import WHOLE, answers

pytestmark = pytest.mark.restarts

ROTATE = [sys.executable, "-m", "dflash_deploy", "keys", "rotate"]


class Client:
    """Someone who holds one key and asks for the list of models ten times a second; every status, in order."""

    def __init__(self, directory: Path, url: str, key: str) -> None:
        self._directory, self._url, self._key = directory, url, key
        self._over = threading.Event()
        self.statuses: list[int | None] = []
        self.sound: list[bool] = []

    @contextmanager
    def asking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._ask)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _ask(self) -> None:
        headers = {"Authorization": f"Bearer {self._key}"}
        while not self._over.wait(0.1):
            self.sound.append(Deployment(self._directory).key_is_sound)
            try:
                self.statuses.append(httpx.get(f"{self._url}/v1/models", headers=headers, timeout=60).status_code)
            except httpx.HTTPError:
                self.statuses.append(None)


def status_with(server: Server, key: str) -> int | None:
    with server.connect() as endpoint:
        url, model = endpoint.url, endpoint.model
    with Endpoint(url, Secret(key), model) as asked:
        try:
            asked.chat("What is the capital of France?", max_tokens=4)
        except EndpointError as problem:
            return problem.status
        return 200


def holders_of(key: str, directory: Path) -> list[Path]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path for path in files if key in path.read_text(errors="replace")]


def test_the_old_key_is_dead_and_the_new_one_opens(drafting: Server) -> None:
    old = drafting.key
    endpoint = drafting.connect()
    client = Client(drafting.directory, endpoint.url, old)
    ends: list[str] = []
    stream = threading.Thread(target=lambda: ends.extend(answers(endpoint, old)))
    with client.asking():
        assert wait_until(lambda: 200 in client.statuses, 300)
        stream.start()
        ran = dflash("keys", "rotate", "--json", at=drafting.directory).succeeded()
        assert wait_until(lambda: client.statuses[-1] == 401, 300)
    stream.join(timeout=60)
    assert not stream.is_alive(), "a client was left hanging"
    print(f"answers under way ended with {ends}; ready after {ran.document['data']['seconds']} s")
    # those before the restart are whole, and the one that it met is not taken for a whole one
    assert set(ends[:-1]) <= {WHOLE}
    assert ends[-1] != WHOLE

    data = ran.document["data"]
    assert data["proof"] == {"old_key": {"before": 200, "after": 401}, "new_key": {"after": 200}}
    assert data["restarted"] is True
    assert data["state"] == "ready"
    assert drafting.key != old
    assert data["fingerprint"] == Secret(drafting.key).fingerprint
    assert data["old_fingerprint"] == Secret(old).fingerprint
    # once it was turned away it never opened again, and .env was not without a key for a moment
    last_opened = max(number for number, status in enumerate(client.statuses) if status == 200)
    assert set(client.statuses[last_opened + 1 :]) == {None, 401}
    assert set(client.statuses[: last_opened + 1]) == {200}
    assert all(client.sound)
    assert (status_with(drafting, old), status_with(drafting, drafting.key)) == (401, 200)
    assert "under way are cut off" in ran.err
    for key in (old, drafting.key):
        assert key not in ran.out + ran.err
    assert holders_of(old, drafting.directory) == []
    assert holders_of(drafting.key, drafting.directory) == [drafting.directory / ".env"]


def test_ended_on_the_way_it_leaves_a_key_and_up_goes_on(drafting: Server) -> None:
    directory, oldest = drafting.directory, drafting.key
    before = engine_of(directory)
    first = subprocess.Popen(ROTATE, cwd=directory, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert wait_until(lambda: drafting.key != oldest, 300)
    # the second is kept out, and changes nothing
    held = drafting.key
    second = dflash("keys", "rotate", at=directory)
    assert (second.code, drafting.key) == (ExitCode.PREFLIGHT, held)
    assert "keys rotate, process" in second.err
    # Ctrl-C while the engine with the new key is loading
    assert wait_until(lambda: engine_of(directory) != before, 300)
    time.sleep(0.5)
    os.killpg(first.pid, signal.SIGINT)
    _, said = first.communicate(timeout=300)
    assert first.returncode == ExitCode.INTERRUPTED
    assert "the old key is no longer valid; continue with `dflash-deploy up`" in said

    # an engine that does not come back
    edit_env(directory, EXTRA_ARGS="--seed=none")
    failed = dflash("keys", "rotate", at=directory)
    assert failed.code is ExitCode.NOT_READY
    assert "argument --seed: invalid int value: 'none'" in failed.err
    assert "the old key is no longer valid; continue with `dflash-deploy up`" in failed.err
    assert drafting.key not in {oldest, held}

    edit_env(directory, EXTRA_ARGS="")
    dflash("up", at=directory).succeeded()
    statuses = [status_with(drafting, key) for key in (oldest, held, drafting.key)]
    assert statuses == [401, 401, 200]


def engine_of(directory: Path) -> int:
    """The process number of the supervisor that was started last."""
    pid: int = json.loads((directory / ".dflash/run.json").read_text())["pid"]
    return pid


def test_another_user_of_the_machine_sees_no_key(drafting: Server) -> None:
    seen = seen_by_another_user()
    assert "dflash_deploy.runtime.supervisor" in seen
    assert drafting.key not in seen

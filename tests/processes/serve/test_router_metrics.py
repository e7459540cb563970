"""The server that gives out the router's metrics: to a key that opens them, and to no other."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dflash_deploy.serve.api_keys import ApiKey
from dflash_deploy.serve.gateway.keys import document_of
from dflash_deploy.serve.router.metrics import guard_metrics
from tests.support.ports import free_port
from tests.support.serving import Quiet, listening

METRICS = ApiKey("prometheus", "k" * 40, "metrics")
CLIENT = ApiKey("client", "c" * 40, "infer")
HANGS = 60.0
"""Seconds after which something counts as hung."""


class Smg(Quiet):
    """SMG's port with metrics."""

    def do_GET(self) -> None:  # noqa: N802 - the name of the base class
        self.send(200, "text/plain", b"smg_worker_health 1\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The keys that the gateways accept."""
    file = tmp_path / "keys.json"
    file.write_text(document_of([METRICS, CLIENT]))
    return file


@pytest.fixture
def url(file: Path) -> Iterator[str]:
    """The guarded metrics of a router that runs."""
    with listening(Smg) as source:
        server = guard_metrics(file, "127.0.0.1", 0, int(source.rpartition(":")[2]))
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        server.server_close()


def status(url: str, key: str = "", path: str = "/metrics") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = httpx.get(f"{url}{path}", headers=headers, timeout=HANGS)
    assert ("smg_" in answer.text) == (answer.status_code == 200)
    return answer.status_code


def test_only_a_key_that_opens_metrics_reads_them(url: str) -> None:
    assert status(url, METRICS.key) == 200
    assert [status(url, key) for key in ("", "another", CLIENT.key)] == [401, 401, 403]
    assert status(url, METRICS.key, "/engine_metrics") == 404
    assert httpx.post(f"{url}/metrics", timeout=HANGS).status_code == 501


def test_a_revoked_key_is_refused_at_once_and_a_damaged_file_opens_nothing(url: str, file: Path) -> None:
    file.write_text(document_of([CLIENT]))
    assert status(url, METRICS.key) == 401
    for text in ("{", '{"schema": 1}', "[]"):
        file.write_text(text)
        assert status(url, METRICS.key) == 503
    file.unlink()
    assert status(url, METRICS.key) == 503


def test_a_router_that_does_not_answer_is_an_error(file: Path) -> None:
    server = guard_metrics(file, "127.0.0.1", 0, free_port())
    assert status(f"http://127.0.0.1:{server.server_address[1]}", METRICS.key) == 502
    server.shutdown()
    server.server_close()

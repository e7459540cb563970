"""The last wait of an engine's pod asks the gateway for the requests in flight, with the key that the engine has."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from dflash_deploy.serve import drain
from dflash_deploy.serve.drain import requests_of
from tests.support.ports import free_port
from tests.support.serving import Quiet, listening

KEY = "key-of-the-owner-0123456789"


@contextmanager
def gateway(status: int, text: str) -> Iterator[int]:
    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] == f"Bearer {KEY}" and self.path == "/metrics"
            self.send(status if known else 401, "text/plain", text.encode())

    with listening(Handler) as url:
        yield int(url.rpartition(":")[2])


METRICS = """\
# TYPE dflash_key_requests_in_flight gauge
dflash_key_requests_in_flight{name="owner"} 2.0
dflash_key_requests_in_flight{name="alice"} 1.0
vllm:num_requests_running{engine="0"} 9.0
"""


@pytest.mark.parametrize(
    ("status", "text", "found"),
    [(200, METRICS, 3), (200, "vllm:num_requests_running 0\n", 0), (503, METRICS, None)],
)
def test_the_gateway_of_an_engine_says_how_many_are_in_flight(status: int, text: str, found: int | None) -> None:
    with gateway(status, text) as port:
        headers = {"Authorization": f"Bearer {KEY}"}
        assert requests_of("127.0.0.1", port, headers) == found
        assert requests_of("127.0.0.1", port, {}) is None
    # it ended: no request is left
    assert requests_of("127.0.0.1", free_port(), headers) == 0


def test_a_rank_0_whose_name_does_not_resolve_says_nothing_of_its_requests() -> None:
    assert requests_of("rank-0.invalid", 8000, {}) is None


def test_the_command_reads_the_key_where_the_engine_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dotenv").write_text(f"VLLM_API_KEY={KEY}\n")
    waited: list[tuple[int | None, float]] = []
    monkeypatch.setattr(drain, "drained", lambda ask, seconds, *_: waited.append((ask(), seconds)))
    with gateway(200, METRICS) as port:
        monkeypatch.setenv("DFLASH_SECRETS_FILE", str(tmp_path / "dotenv"))
        monkeypatch.setenv("DFLASH_PORT", str(port))
        assert drain.main(["45"]) == 0
    assert waited == [(3, 45.0)]

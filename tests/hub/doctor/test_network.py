"""The port, the hub and the clock, against real sockets and a real server."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dflash_deploy.doctor import network
from dflash_deploy.doctor.check import NO_TOKEN, Check
from dflash_deploy.doctor.network import ask_hub
from dflash_deploy.redact import Secret
from dflash_deploy.runtime.protocol import EngineState
from tests.support.examined import a_plan, a_subject, by_name, only, whole_weights
from tests.support.ports import free_port
from tests.support.scripted import ScriptedRuntime

TOKEN = Secret("hf_thisIsASecretThatNobodyShouldSee")


class _Handler(BaseHTTPRequestHandler):
    """Answers with the status of its server, and with a clock that is off by so many seconds."""

    server: "_Hub"

    def answer(self) -> None:
        self.server.asked.append(f"{self.command} {self.path} {self.headers.get('authorization', '-')}")
        time.sleep(self.server.delay)
        self.send_response_only(self.server.status)
        self.send_header("Date", formatdate(time.time() + self.server.clock, usegmt=True))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""

    do_GET = do_HEAD = answer  # noqa: N815 - the names that the server looks for


class _Hub(ThreadingHTTPServer):
    daemon_threads = True
    status = 200
    clock = 0.0
    delay = 0.0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def hub() -> Iterator[_Hub]:
    with _Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def looked(
    url: str, *, token: Secret = NO_TOKEN, models: Path = Path("/nowhere"), gated: bool = False
) -> dict[str, Check]:
    """What is seen of a hub; the token is in none of it."""
    checks = by_name(network.hub, a_subject(a_plan(models=models, gated=gated), hub=url, token=token))
    assert TOKEN.reveal() not in str(checks)
    return checks


def test_without_a_token_a_repository_is_asked_for(hub: _Hub) -> None:
    checks = looked(hub.url)
    assert (checks["hub"].status, checks["clock"].status) == ("ok", "ok")
    assert hub.asked == ["HEAD /api/models/ada/drafter -"]


def test_a_token_is_tried(hub: _Hub) -> None:
    assert looked(hub.url, token=TOKEN)["hub"].status == "ok"
    assert hub.asked == [f"HEAD /api/models/ada/drafter Bearer {TOKEN.reveal()}"]


def test_a_stale_token_is_in_the_way_while_weights_are_missing(hub: _Hub, tmp_path: Path) -> None:
    hub.status = 401
    check = looked(hub.url, token=TOKEN)["hub"]
    assert check.status == "no"
    assert "settings/tokens" in check.fix
    assert looked(hub.url, token=TOKEN, models=whole_weights(tmp_path))["hub"].status == "warning"


def test_a_gated_model_needs_a_token(hub: _Hub) -> None:
    check = looked(hub.url, gated=True)["hub"]
    assert check.status == "no"
    assert "ada/drafter is gated" in check.saw
    assert looked(hub.url, gated=True, token=TOKEN)["hub"].status == "ok"


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    checks = looked(nobody, token=TOKEN)
    assert (checks["hub"].status, checks["clock"].status) == ("no", "skipped")
    assert "HF_ENDPOINT" in checks["hub"].fix
    assert looked(nobody, models=whole_weights(tmp_path))["hub"].status == "warning"


def test_a_hub_that_does_not_answer_is_given_up(hub: _Hub) -> None:
    hub.delay = 20.0
    started = time.monotonic()
    answer = ask_hub(hub.url, NO_TOKEN, "ada/drafter", timeout=0.2)
    assert answer.status is None
    assert answer.problem
    assert time.monotonic() - started < hub.delay


@pytest.mark.parametrize("url", ["no url at all", "http://[", "ftp://x"])
def test_an_endpoint_that_makes_no_sense(url: str) -> None:
    assert looked(url)["hub"].status == "no"


@pytest.mark.parametrize(("off", "status"), [(200, "ok"), (-200, "ok"), (3600, "no"), (-3600, "no")])
def test_the_clock_is_compared_with_the_hubs(hub: _Hub, off: float, status: str) -> None:
    hub.clock = off
    check = looked(hub.url)["clock"]
    assert check.status == status
    assert ("behind" if off > 0 else "ahead of") in check.saw


def test_nothing_is_asked_where_nothing_is_fetched(hub: _Hub) -> None:
    subject = a_subject(a_plan(repos=False), hub=hub.url)
    assert only(network.hub, subject).status == "skipped"
    assert hub.asked == []


@contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_free_port() -> None:
    number = free_port()
    check = only(network.port, a_subject(a_plan(DFLASH_PORT=str(number))))
    assert (check.status, check.saw) == ("ok", f"127.0.0.1:{number} is free")


@pytest.mark.parametrize("runtime", ["compose", "native"])
@pytest.mark.parametrize("host", ["192.0.2.7", "203.0.113.9", "2001:db8::1", "nowhere.invalid"])
def test_an_address_of_another_machine(host: str, runtime: str) -> None:
    check = only(network.port, a_subject(a_plan(DFLASH_BIND=host, runtime=runtime)))
    assert (check.status, check.saw) == ("no", f"DFLASH_BIND=`{host}` is not an address of this machine")


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "127.0.0.2", "localhost"])
def test_an_address_of_this_machine(host: str) -> None:
    assert only(network.port, a_subject(a_plan(DFLASH_BIND=host, DFLASH_PORT=str(free_port())))).status == "ok"


def test_a_port_that_somebody_holds() -> None:
    with listening() as number:
        assert only(network.port, a_subject(a_plan(DFLASH_PORT=str(number)))).status == "no"


def test_the_deployments_own_engine_may_hold_it() -> None:
    with listening() as number:
        runtime = ScriptedRuntime([EngineState("running", address=f"127.0.0.1:{number}")])
        plan = a_plan(DFLASH_PORT=str(number))
        assert only(network.port, a_subject(plan, runtime=runtime)).status == "ok"
        gone = ScriptedRuntime([EngineState("exited", address=f"127.0.0.1:{number}")])
        assert only(network.port, a_subject(plan, runtime=gone)).status == "no"

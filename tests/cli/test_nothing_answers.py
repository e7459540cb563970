"""An endpoint where nothing answers: one line with a hint, instead of one failure for each check."""

import http.server
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, edit_env, initialise, invoke
from tests.support.ports import free_port


class _Closes(socketserver.BaseRequestHandler):
    """Accepts and closes, as Docker's proxy does while nothing listens in the container."""

    def handle(self) -> None:
        self.request.recv(10)


class _Loads(http.server.BaseHTTPRequestHandler):
    """Answers 503, as llama.cpp and its gateway do while weights load."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""

    def do_GET(self) -> None:
        self.send_error(503)


@contextmanager
def _listening(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=partial(server.serve_forever, 0.02))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _nothing() -> Iterator[int]:
    yield free_port()


STATES: dict[str, tuple[Callable[[], AbstractContextManager[int]], str]] = {
    "a free port": (_nothing, "nothing answers on http://127.0.0.1:{}: "),
    "a port that closes": (partial(_listening, _Closes), "nothing answers on http://127.0.0.1:{}: "),
    "weights that load": (partial(_listening, _Loads), "http://127.0.0.1:{} is not ready: GET /health answered 503"),
}


def one_line(ran: Ran, message: str, hint: str) -> None:
    """Whether this is all that was printed."""
    assert ran.code is ExitCode.NOT_READY, ran.out + ran.err
    assert ran.out == ""
    error, hinted = ran.err.splitlines()
    assert error.startswith(f"error: {message}")
    assert hinted.startswith(f"  hint: {hint}")


def started(deployment: Path) -> str:
    """How the hint begins."""
    return f"start it first: `dflash-deploy up --dir {deployment}`; "


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("deployment")
    initialise("--profile", "cpu", "--runtime", "native", at=directory)
    return directory


@pytest.mark.parametrize("state", STATES)
def test_test_is_one_line(deployment: Path, state: str) -> None:
    make, message = STATES[state]
    with make() as port:
        edit_env(deployment, DFLASH_PORT=str(port))
        one_line(invoke("test", "--dir", str(deployment)), message.format(port), started(deployment))
        document = invoke("test", "--dir", str(deployment), "--json").document
        url = f"http://127.0.0.1:{port}/v1"
        # with a name for the model, no other request is made before the checks
        one_line(invoke("test", "--url", url, "--model", "x"), message.format(port), "check the URL")
    assert (document["command"], document["status"], document["data"]) == ("test", "failed", {})
    assert document["error"]["code"] == ExitCode.NOT_READY
    assert document["error"]["message"].startswith(message.format(port))
    assert document["error"]["hint"].startswith(started(deployment))


@pytest.mark.parametrize("command", ["bench", "tune", "test --baseline"])
def test_so_are_the_other_commands_that_measure(deployment: Path, command: str) -> None:
    port = free_port()
    edit_env(deployment, DFLASH_PORT=str(port))
    message = f"nothing answers on http://127.0.0.1:{port}: "
    one_line(invoke(*command.split(), "--dir", str(deployment)), message, started(deployment))


def test_an_address_where_nothing_answers_is_not_measured() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    one_line(invoke("bench", "--url", url), f"nothing answers on {url}: ", "check the URL")

"""What `doctor` says of the receiver of traces: a real HTTP/2 server, a real HTTP server, and none."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.doctor.check import Check, DoctorContext
from dflash_deploy.doctor.network import traces
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import RECORDED
from tests.support.ports import free_port
from tests.support.serving import Quiet, listening


class Receiver(Quiet):
    """Accepts traces over HTTP at one path."""

    def do_POST(self) -> None:  # noqa: N802 - the name is the base class's
        """Accept an empty request of the right kind."""
        right = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
        self.send(200 if right else 404, "application/x-protobuf", b"")


@pytest.fixture
def http2() -> Iterator[int]:
    """The port of a server that speaks HTTP/2 as gRPC servers do, without TLS."""

    def serve(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            connection = H2Connection(H2Configuration(client_side=False))
            connection.initiate_connection()
            client.sendall(connection.data_to_send())
            # raises if the preface of the client is none
            connection.receive_data(client.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def checked(endpoint: str, engine: str = "vllm-cpu-0.32") -> list[Check]:
    facts = replace(RECORDED["cpu"], cpus=4)
    choice = Choice(profile="cpu", engine=engine, runtime="native", edited={"OTLP_TRACES_ENDPOINT": endpoint})
    plan = plan_deployment(facts, choice, load_catalog())
    return list(traces(DoctorContext(facts, plan), plan))


def test_a_receiver_of_grpc_is_accepted(http2: int) -> None:
    (check,) = checked(f"http://127.0.0.1:{http2}")
    assert (check.name, check.status, check.saw) == ("traces", "ok", f"http://127.0.0.1:{http2} accepts traces (grpc)")


def test_a_receiver_of_http_is_accepted_at_its_path_only() -> None:
    with listening(Receiver) as address:
        (right,), (wrong,), (grpc,) = checked(f"{address}/v1/traces"), checked(f"{address}/v2"), checked(address)
    assert (right.status, right.saw) == ("ok", f"{address}/v1/traces accepts traces (http/protobuf)")
    assert (wrong.status, wrong.saw) == ("warning", f"{address}/v2 accepts no traces: it answers 404")
    assert "add the path /v1/traces" in grpc.saw
    assert "OTLP_TRACES_ENDPOINT" in grpc.fix


@pytest.mark.parametrize("path", ["", "/v1/traces"])
def test_a_receiver_that_does_not_listen_is_a_warning(path: str) -> None:
    (check,) = checked(f"http://127.0.0.1:{free_port()}{path}")
    assert check.status == "warning"
    assert "Connection refused" in check.saw


def test_without_an_endpoint_there_is_nothing_to_check() -> None:
    assert checked("") == []
    # a rule says that llama.cpp sends none
    assert checked("http://127.0.0.1:4317", engine="llamacpp-cpu-b11549") == []

"""`python -m dflash_deploy.serve.door` in front of an engine behind a Unix socket."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from dflash_deploy.serve.door.listener import server_of
from dflash_deploy.serve.gateway.connections import WaitingConnections
from tests.support.commands import HANGS
from tests.support.door import FURTHER, KEY, Door, opened, start, until
from tests.support.parsers.fetch import REPOSITORY


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """The door of all tests that leave it open."""
    with opened(tmp_path_factory.mktemp("door")) as made:
        yield made


@pytest.fixture
def own_door(tmp_path: Path) -> Iterator[Door]:
    """A door that a test may close."""
    with opened(tmp_path) as made:
        yield made


def status_of(door: Door, target: str) -> int:
    """The status of a GET of exactly this target, without a key."""
    connection = HTTPConnection("127.0.0.1", int(door.url.rpartition(":")[2]), timeout=HANGS)
    connection.request("GET", target)
    status = connection.getresponse().status
    connection.close()
    return status


def memory_peak(door: Door) -> int:
    """The most memory that the door's process had, in kB."""
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{door.process.pid}/status").read_text())
    return int(peak)


def test_one_route_is_open(door: Door) -> None:
    for method in ("GET", "HEAD"):
        assert door.request(method, "/health", key="").status_code == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert door.request(method, "/health", key="").status_code == 401
    assert status_of(door, "/%68ealth?x=1") == 200
    targets = ["/", "/v1/models", "/metrics", "/slots", "/health/", "//health", "/x/../health", "/health%2f", "/HEALTH"]
    assert {target: status_of(door, target) for target in targets} == dict.fromkeys(targets, 401)
    assert door.request("GET", "/v1/models", key="not-a-key-of-this-endpoint").status_code == 401


def test_the_engine_sees_the_request_and_a_key_of_its_own(door: Door) -> None:
    for key in (KEY, FURTHER):
        seen = door.request("POST", "/echo%20a/b?q=%2F&r=ü", key=key, content=b"1" * 5000).json()
        headers = dict(seen["headers"])
        assert (seen["method"], seen["body"]) == ("POST", 5000)
        assert seen["target"] == "/echo%20a/b?q=%2F&r=%C3%BC"
        assert headers["authorization"] == f"Bearer {door.environment['LLAMA_API_KEY']}"
        assert key not in json.dumps(seen)


def test_a_body_in_chunks_arrives_whole_and_one_above_the_limit_is_refused(door: Door) -> None:
    def chunks(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield b"1" * 65536

    assert door.request("POST", "/echo", content=chunks(15)).json()["body"] == 15 * 65536
    assert door.request("POST", "/echo", content=chunks(17)).status_code == 413
    assert door.request("POST", "/echo", content=b"x" * (17 * 65536)).status_code == 413


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_packed_body_is_not_unpacked(own_door: Door, coding: str) -> None:
    """3 GB in 3 MB stopped the door for 9 s without a key, and filled its memory with one."""
    packed = zlib.compress(bytes(400_000_000), wbits=31 if coding == "gzip" else 15)
    told = {"Content-Encoding": coding, "Content-Type": "application/json"}
    for key, status in (("", 401), ("a-key-that-is-none-0123456789", 401), (KEY, 415)):
        headers = told | ({"Authorization": f"Bearer {key}"} if key else {})
        assert httpx.post(f"{own_door.url}/echo", headers=headers, content=packed, timeout=HANGS).status_code == status
    assert memory_peak(own_door) < 150_000


@pytest.mark.parametrize("broken", ["Authorization: Bearer {}\0", "x-api-key: {}\r\n: y", "Bad Header {}: y", "{}"])
def test_what_is_not_http_is_refused_without_quoting_it(door: Door, broken: str) -> None:
    with socket.create_connection(("127.0.0.1", int(door.url.rpartition(":")[2])), timeout=HANGS) as client:
        client.sendall(f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{broken.format(KEY)}\r\n\r\n".encode())
        with client.makefile("rb") as answer:
            said = answer.read().decode()
    assert said.partition("\r\n")[0].endswith(" 400 Bad Request")
    assert KEY not in said
    assert json.loads(said.partition("\r\n\r\n")[2])["error"]["message"] == "the request is not valid HTTP"
    assert "aiohttp" not in said
    assert "Python" not in said


def test_the_server_names_no_versions(door: Door) -> None:
    for path, key in (("/health", ""), ("/echo", KEY), ("/nothing", "")):
        assert door.request("GET", path, key=key).headers["server"] == "dflash-deploy"


def test_a_head_that_does_not_end_is_given_up() -> None:
    async def silence(beginning: bytes) -> bytes:
        runner = web.ServerRunner(server_of(no_application, WaitingConnections(first=0.2)))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(beginning)
        try:
            return await asyncio.wait_for(reader.read(), HANGS)
        finally:
            writer.close()
            await runner.cleanup()

    async def no_application(*_: object) -> None:
        raise AssertionError("no request has arrived")

    for beginning in (b"", b"GET", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nX: "):
        assert asyncio.run(silence(beginning)) == b""


def test_an_expected_continue_is_sent_to_those_with_a_key(door: Door) -> None:
    asked = "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n{}\r\n"
    for header, first in ((f"x-api-key: {KEY}\r\n", b"HTTP/1.1 100 Continue"), ("", b"HTTP/1.1 401 Unauthorized")):
        address = ("127.0.0.1", int(door.url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=HANGS) as client, client.makefile("rb") as answer:
            client.sendall(asked.format(header).encode())
            assert answer.readline().strip() == first
            if header:
                client.sendall(b"123")
                assert b'"body": 3' in answer.read()


def test_the_engine_has_none_of_the_endpoints_secrets(door: Door) -> None:
    written = json.dumps(door.environment)
    assert not [secret for secret in (KEY, FURTHER, "hf_of_the_hub", "DFLASH_SECRETS_FILE") if secret in written]
    command = Path(f"/proc/{door.process.pid}/cmdline").read_text()
    environment = Path(f"/proc/{door.process.pid}/environ").read_text()
    assert KEY not in command + environment
    place = Path(door.environment["LLAMA_ARG_HOST"]).parent
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_chunks_arrive_as_they_come_and_the_engine_notices_a_client_that_leaves(door: Door) -> None:
    with (
        httpx.Client(headers={"x-api-key": KEY}, timeout=HANGS) as client,
        client.stream("GET", f"{door.url}/stream") as response,
    ):
        lines = response.iter_lines()
        # the whole answer would take 100 s and more
        assert [next(lines) for _ in range(3)] == ["line 0", "line 1", "line 2"]
    until((door.place / "seen").exists)


def test_an_answer_that_ends_early_is_no_whole_answer(door: Door) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        door.request("GET", "/half")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_reaches_the_engine_and_its_code_is_the_doors(own_door: Door, number: int, code: int) -> None:
    own_door.process.send_signal(number)
    assert own_door.process.wait(HANGS) == code
    assert not [entry.name for entry in own_door.place.iterdir() if entry.name.startswith("dflash-")]


def test_the_door_ends_with_the_engine(own_door: Door) -> None:
    assert own_door.request("GET", "/exit").status_code == 503
    assert own_door.process.wait(HANGS) == 7


def test_a_stream_breaks_with_the_engine_and_the_door_waits_for_nothing(own_door: Door) -> None:
    with (
        httpx.Client(headers={"x-api-key": KEY}, timeout=HANGS) as client,
        client.stream("GET", f"{own_door.url}/stream") as response,
    ):
        lines = response.iter_lines()
        assert next(lines) == "line 0"
        own_door.request("GET", "/exit")
        # less than aiohttp waits for a request when its server ends
        assert own_door.process.wait(30) == 7
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)


def test_the_engine_ends_with_the_door(own_door: Door) -> None:
    (child,) = Path(f"/proc/{own_door.process.pid}/task/{own_door.process.pid}/children").read_text().split()
    own_door.process.kill()
    own_door.process.wait(HANGS)
    until(lambda: not Path(f"/proc/{child}").exists())


def test_a_taken_port_is_said_before_the_engine_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, start(tmp_path, taken.getsockname()[1]) as process:
        out, _ = process.communicate(timeout=HANGS)
    assert process.returncode == 1
    assert "Errno 98" in out
    assert "address already in use" in out
    assert not (tmp_path / "environment").exists()


def test_without_a_key_no_port_is_opened(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("DFLASH_PORT=1\n")
    done = subprocess.run(
        [sys.executable, "-m", "dflash_deploy.serve.door", "llamacpp", "true"],
        env={"PATH": os.environ["PATH"], "DFLASH_SECRETS_FILE": str(tmp_path / "env")},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "would answer any client" in done.stderr


def test_a_client_that_reads_slowly_gets_the_whole_stream_and_fills_no_memory(own_door: Door) -> None:
    events = 40_000
    body = json.dumps({"stream": True, "max_tokens": events, "n": 50, "pause": 0})
    port = int(own_door.url.rpartition(":")[2])
    connection = HTTPConnection("127.0.0.1", port, timeout=HANGS)
    with socket.socket() as connection.sock:
        # as few bytes as possible wait outside the door
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sock.connect(("127.0.0.1", port))
        connection.request("POST", "/v1/completions", body, {"x-api-key": KEY})
        with connection.getresponse() as answer:
            peak = memory_peak(own_door)
            time.sleep(1)
            assert memory_peak(own_door) < peak + 5_000
            text = answer.read()
    assert [int(word) for word in re.findall(rb'"text":" word(\d+)"', text)] == [*range(events)]
    assert b"timings" not in text
    assert text.endswith(b"\n\ndata: [DONE]\n\n")

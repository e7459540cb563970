"""A container's log over Docker's API: whole if it is short, its beginning and its end in bounded memory if not."""

import struct
import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import docker
import pytest
from docker.errors import APIError, NotFound
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.runtime import log
from dflash_deploy.runtime.docker import frames_of, read_container_log

MIB = 2**20


def framed(content: bytes, stream: int = 1) -> bytes:
    """A frame as Docker's API sends it (ContainerAttach)."""
    return struct.pack(">BxxxL", stream, len(content)) + content


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.server.asked.append(query)  # type: ignore[attr-defined]
        name = path.split("/")[3]
        if name in {"missing", "broken"}:
            body = b'{"message": "no such container"}'
            self.send_response(404 if name == "missing" else 500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        line = b"2026-11-22T10:00:00.000000000Z " + b"x" * 4000 + b"\n"
        rows = 3 if name == "short" else 64 * MIB // len(line)
        for number in range(rows):
            content = framed(line.replace(b"xx", b"%06d" % number, 1), 1 + number % 2)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    running = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    running.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture
def api(server: ThreadingHTTPServer) -> Iterator[docker.APIClient]:
    client = docker.APIClient(base_url=f"tcp://127.0.0.1:{server.server_port}", version="1.44")
    yield client
    client.close()


def test_a_short_log_is_whole(api: docker.APIClient, server: ThreadingHTTPServer) -> None:
    lines = read_container_log(api, "short", since=17, tty=False).splitlines()
    assert [line[31:37] for line in lines] == [b"000000", b"000001", b"000002"]
    assert "since=17" in server.asked[0]  # type: ignore[attr-defined]
    assert len(read_container_log(api, "short", since=None, tty=True)) == 3 * 8 + len(b"\n".join(lines)) + 1


def test_of_a_long_log_the_beginning_and_the_end_are_kept(
    api: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "HEAD", MIB)
    monkeypatch.setattr(log, "TAIL", 2 * MIB)
    tracemalloc.start()
    content = read_container_log(api, "long", since=None, tty=False)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 16 * MIB
    lines = content.splitlines()
    assert lines[0][31:37] == b"000000"
    assert int(lines[-1][31:37]) == 64 * MIB // 4032 - 1
    assert sum(b"MiB of the log are not shown here" in line for line in lines) == 1


@pytest.mark.parametrize(("name", "error"), [("missing", NotFound), ("broken", APIError)])
def test_a_refusal_is_dockers_error(api: docker.APIClient, name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="no such container"):
        read_container_log(api, name, since=None, tty=False)


@given(st.lists(st.binary(max_size=40)), st.integers(1, 50))
def test_frames_are_found_however_they_are_cut(contents: list[bytes], size: int) -> None:
    whole = b"".join(map(framed, contents))
    chunks = (whole[at : at + size] for at in range(0, len(whole), size))
    assert b"".join(frames_of(chunks)) == b"".join(contents)

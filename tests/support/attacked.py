"""Attacks on an endpoint by clients without a key and with one, and what must hold meanwhile; for any engine."""

import base64
import gzip
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

HANGS = 120.0  # seconds after which something counts as hung

# Of requests that never end.
BEGINNINGS = (
    b"",
    b"GET",
    b"GET /health HTTP/1.1\r\n",
    b"GET /health HTTP/1.1\r\nX: ",
    b"POST /v1/messages HTTP/1.1\r\nA: b\r\n",
)

# Spellings of this machine.
LOOPBACK = ("127.0.0.1", "localhost", "2130706433", "127.1", "0177.0.0.1", "user@127.0.0.1", "[::ffff:127.0.0.1]")


@dataclass(frozen=True)
class Endpoint:
    """What is attacked: its base URL without /v1, a key, and how its certificate is checked."""

    url: str
    key: str
    verify: ssl.SSLContext | bool = True

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 443

    def client(self, key: str | None = None) -> httpx.Client:
        """A client with the key, or another one."""
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=HANGS, trust_env=False, verify=self.verify)

    def connect(self) -> socket.socket:
        """A connection, with TLS if the endpoint has it."""
        wire = socket.create_connection(self.address, timeout=HANGS)
        if isinstance(self.verify, ssl.SSLContext):
            return self.verify.wrap_socket(wire, server_hostname=self.address[0])
        return wire


def png(side: int) -> str:
    """A PNG of side x side pixels in 60 bytes, as a data URI: a header without pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    whole = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(side * 3 + 1)))
        + chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(whole).decode()


def chat(picture: str) -> list[object]:
    """The content of a message with one picture, as OpenAI's chats have it."""
    return [{"type": "image_url", "image_url": {"url": picture}}]


def spelled(picture: str) -> dict[str, object]:
    """A request with one picture in the spelling of each API, by its route."""
    told = {"model": "tiny", "max_tokens": 1}
    response = {"type": "input_image", "image_url": picture}
    message = {"type": "image", "source": {"type": "url", "url": picture}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [message]}
    return {
        "/v1/chat/completions": {**told, "messages": [{"role": "user", "content": chat(picture)}]},
        "/v1/responses": {**told, "input": [{"role": "user", "content": [response]}]},
        "/v1/messages": {**told, "messages": [{"role": "user", "content": [message]}]},
        "/v1/messages/count_tokens": {**told, "messages": [{"role": "user", "content": [result]}]},
    }


@contextmanager
def listening() -> Iterator[tuple[int, list[str]]]:
    """A port of this machine and who has connected to it."""
    seen: list[str] = []
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()

        def accept() -> None:
            while True:
                try:
                    wire, peer = listener.accept()
                except OSError:
                    return
                seen.append(str(peer))
                wire.close()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1], seen
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def no_address_is_fetched(endpoint: Endpoint) -> None:
    """Each API refuses an address of this machine in every spelling, without a word that tells open ports."""
    with endpoint.client() as client, listening() as (port, seen):
        for host in LOOPBACK:
            for route, body in spelled(f"http://{host}:{port}/a.png").items():
                answer = client.post(route, json=body)
                assert (answer.status_code, answer.json()["error"]["code"]) == (400, "image_url_refused"), (host, route)
        assert not seen


def pictures_are_limited(endpoint: Endpoint) -> None:
    """Their number and their pixels are refused before the engine decodes one, and so are endless conversations."""
    chats, bombs = "/v1/chat/completions", spelled(png(16_000))
    requests: list[tuple[str, object, str]] = [
        (chats, {"messages": [{"role": "user", "content": chat(png(8)) * 2000}], "model": "tiny"}, "too_many_images"),
        (chats, bombs[chats], "image_too_large"),
        ("/v1/responses", bombs["/v1/responses"], "image_too_large"),
        (chats, {"messages": [{"role": "user", "content": "a"}] * 100_000, "model": "tiny"}, "request_too_large"),
    ]
    for route, body, code in requests:
        with endpoint.client() as client:
            begun = time.monotonic()
            answer = client.post(route, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
            assert time.monotonic() - begun < HANGS / 10


def nothing_is_unpacked(endpoint: Endpoint, process: int) -> None:
    """400 MB in 400 kB get 401 without a key and 415 with one, and fill no memory."""
    packed = gzip.compress(bytes(400_000_000))
    before = peak(process)
    for key, status in (("", 401), ("no-key-0123456789", 401), (endpoint.key, 415)):
        with endpoint.client(key or "none-at-all-0123") as client:
            answer = client.post("/v1/chat/completions", content=packed, headers={"Content-Encoding": "gzip"})
            assert answer.status_code == status
    assert peak(process) - before < 100_000


def peak(process: int) -> int:
    """The most memory that a process had so far, in kB."""
    (line,) = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


@contextmanager
def half_heads(endpoint: Endpoint, count: int) -> Iterator[list[socket.socket]]:
    """Connections without a key that send a beginning and no more."""
    with ExitStack() as held:
        opened = []
        for number in range(count):
            wire = held.enter_context(endpoint.connect())
            wire.sendall(BEGINNINGS[number % len(BEGINNINGS)])
            opened.append(wire)
        yield opened


def a_large_body_gets_its_answer(endpoint: Endpoint, mib: int) -> None:
    """A body above the limit of `mib`, sent in chunks to its end, gets 413, and the server answers others."""
    with endpoint.client() as client:
        for size, status in ((mib + 1, 413), (mib - 1, 400)):
            content = (b"[" * (1 << 20) for _ in range(size))
            assert client.post("/v1/chat/completions", content=content).status_code == status
        assert client.get("/health").status_code == 200


def half_heads_keep_nobody_out(endpoint: Endpoint, count: int, route: str = "/v1/models") -> None:
    """Clients with a key are answered beside `count` of them as before, and so is the health check; they are closed."""
    with endpoint.client() as client:
        # of SGLang's server without its engine it is no 200
        usual = client.get(route).status_code
    assert usual not in {401, 403}
    with half_heads(endpoint, count) as opened:
        for _ in range(5):
            with endpoint.client() as client:
                begun = time.monotonic()
                assert client.get("/health").status_code == 200
                assert client.get(route).status_code == usual
                assert time.monotonic() - begun < HANGS / 10
        for wire in opened:
            with suppress(ConnectionResetError):
                # a connection that is closed has an end, or what Caddy says of a head that took too long
                while wire.recv(4096):
                    pass


def an_endless_head_is_cut_off(endpoint: Endpoint) -> None:
    """A head that does not end is read to a limit, not into the memory."""
    line = b"X-a: " + b"y" * 4000 + b"\r\n"
    with endpoint.connect() as wire:
        wire.sendall(b"GET /health HTTP/1.1\r\n")
        # Caddy answers 431 first, and then closes
        with pytest.raises((ConnectionError, ssl.SSLError)):
            wire.sendall(line * 50_000)


def no_refusal_quotes_its_request(endpoint: Endpoint) -> None:
    """Of a head that is not valid, the key does not come back, nor a version of the server."""
    for broken in ("Authorization: Bearer {}\0", "x-api-key: {}\r\n: y", "Bad Header {}: y", "{}"):
        with endpoint.connect() as wire:
            head = f"GET /v1/models HTTP/1.1\r\nHost: {endpoint.address[0]}\r\nConnection: close\r\n"
            wire.sendall(f"{head}{broken.format(endpoint.key)}\r\n\r\n".encode())
            said = b""
            while more := wire.recv(65536):
                said += more
        assert b" 400 " in said.partition(b"\r\n")[0], said
        assert endpoint.key.encode() not in said
        assert not [word for word in (b"aiohttp/", b"Python/", b"uvicorn/") if word in said]


def a_burst_stays_within_the_tokens_of_a_minute(endpoint: Endpoint, limit: int) -> None:
    """Fifty requests at once of a key with `limit` tokens per minute: the limit, and at most one request more."""
    body = {
        "model": "tiny",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    used: list[int] = []
    statuses: list[int] = []

    def ask() -> None:
        with endpoint.client() as client:
            answer = client.post("/v1/chat/completions", json=body)
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                used.append(answer.json()["usage"]["total_tokens"])

    askers = [threading.Thread(target=ask) for _ in range(50)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(HANGS)
    assert set(statuses) == {200, 429}, statuses
    assert sum(used) < limit + max(used), used


def holds(endpoint: Endpoint, process: int, *, half: int, route: str = "/v1/models", mib: int = 64) -> None:
    """All but what needs tokens. `process`: the one that reads requests. `half`: connections. `mib`: the limit."""
    no_address_is_fetched(endpoint)
    pictures_are_limited(endpoint)
    nothing_is_unpacked(endpoint, process)
    no_refusal_quotes_its_request(endpoint)
    an_endless_head_is_cut_off(endpoint)
    a_large_body_gets_its_answer(endpoint, mib)
    files, memory = files_of(process), peak(process)
    half_heads_keep_nobody_out(endpoint, half, route)
    assert files_of(process) < files + 20
    assert peak(process) - memory < 100_000


def files_of(process: int) -> int:
    """Files that a process has open."""
    return len(list(Path(f"/proc/{process}/fd").iterdir()))

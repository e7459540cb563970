"""Weights that one host offers and another one takes, with the same downloader as from the Hub."""

import shutil
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dflash_deploy.errors import DeployError, DownloadFailed
from dflash_deploy.redact import Secret, generate_key
from dflash_deploy.weights import fetch as staging
from dflash_deploy.weights import fetch as transfer
from dflash_deploy.weights.fetch import DownloadOptions, fetch
from dflash_deploy.weights.lock import Lock, LockedFile, LockedModel
from dflash_deploy.weights.offer import WeightsServer, offered_files, serving
from dflash_deploy.weights.pull import RequestedModel
from dflash_deploy.weights.source import Source
from tests.support.hub import Generated, read, sha256_of

WEIGHTS = Generated(70 * 2**20, seed=3)
"""Large enough for several connections."""

SHARD, CONFIG = "sub dir/model-00001.safetensors", "config.json"
TOKEN = generate_key()


@pytest.fixture(scope="module")
def model() -> LockedModel:
    files = (LockedFile(SHARD, WEIGHTS.size, sha256=sha256_of(WEIGHTS)), LockedFile(CONFIG, 2))
    return LockedModel("o/target", "c" * 40, files)


@pytest.fixture
def place(tmp_path: Path, model: LockedModel) -> Path:
    """The weights on the host that offers them."""
    found = tmp_path / "there"
    (found / SHARD).parent.mkdir(parents=True)
    (found / SHARD).write_bytes(read(WEIGHTS))
    (found / CONFIG).write_text("{}")
    (found / "secret.txt").write_text("not in the lock")
    return found


@pytest.fixture
def server(place: Path, model: LockedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightsServer]:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setattr(transfer, "FRUITLESS", 2)
    monkeypatch.setattr(staging, "PATIENCE", 5.0)
    wanted = (RequestedModel("target", "o/target", None, place, ()),)
    found = WeightsServer("127.0.0.1", offered_files(wanted, Lock({"target": model})), TOKEN)
    with serving(found):
        yield found


def take(server: WeightsServer, model: LockedModel, directory: Path, token: Secret = TOKEN) -> None:
    fetch(Source(server.url, token, direct=True), model, directory, DownloadOptions())


def asked(server: WeightsServer, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = HTTPConnection("127.0.0.1", int(server.server_address[1]), timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers=named)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.headers)
    finally:
        connection.close()


def test_files_arrive_whole_and_nothing_else_has_an_address(
    server: WeightsServer, model: LockedModel, tmp_path: Path
) -> None:
    take(server, model, tmp_path / "here")
    assert (tmp_path / "here" / SHARD).read_bytes() == read(WEIGHTS)
    assert (tmp_path / "here" / CONFIG).read_text() == "{}"
    key = f"Bearer {TOKEN.reveal()}"
    prefix = f"/o/target/resolve/{'c' * 40}"
    assert asked(server, f"{prefix}/config.json", Authorization=key)[:2] == (200, b"{}")
    for path in ("/", "/secret.txt", f"{prefix}/secret.txt", f"{prefix}/../{'c' * 40}/config.json",
                 f"{prefix}/sub dir/../config.json".replace(" ", "%20"), "/etc/passwd", "//etc/passwd"):  # fmt: skip
        assert asked(server, path, Authorization=key)[0] == 404


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic x", "Bearer \xff"])
def test_without_the_token_there_is_nothing(server: WeightsServer, model: LockedModel, header: str) -> None:
    path = f"/o/target/resolve/{'c' * 40}/config.json"
    headers = {"Authorization": header} if header else {}
    status, body, _ = asked(server, path, **headers)
    assert (status, body) == (401, b"")


def test_only_requests_with_the_token_keep_an_offer_open(server: WeightsServer) -> None:
    path = f"/o/target/resolve/{'c' * 40}/config.json"
    began = time.monotonic()
    strangers = [socket.create_connection(("127.0.0.1", int(server.server_address[1]))) for _ in range(3)]
    time.sleep(0.2)
    asked(server, path, Authorization="Bearer wrong")
    assert server.idle >= 0.2
    assert asked(server, path, Authorization=f"Bearer {TOKEN.reveal()}")[0] == 200
    assert server.idle < time.monotonic() - began
    # whoever has no token does not keep a connection either
    strangers[0].sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    strangers[0].settimeout(10)
    said = b"".join(iter(lambda: strangers[0].recv(4096), b""))
    assert said.startswith(b"HTTP/1.1 401")
    for one in strangers:
        one.close()


def test_an_offer_is_not_idle_while_it_sends(server: WeightsServer) -> None:
    with server.answering():
        time.sleep(0.05)
        assert server.idle == 0.0
        sent = time.monotonic()
    # no more than has passed since
    assert server.idle <= time.monotonic() - sent


def test_a_wrong_token_is_an_error_and_no_file(server: WeightsServer, model: LockedModel, tmp_path: Path) -> None:
    with pytest.raises(DeployError):
        take(server, model, tmp_path / "here", Secret("x" * 43))
    assert not (tmp_path / "here" / CONFIG).exists()


def test_a_transfer_resumes_in_the_middle_of_a_file(server: WeightsServer, model: LockedModel, tmp_path: Path) -> None:
    here = tmp_path / "here"
    options = DownloadOptions()
    arrived = 0

    def count(size: int) -> None:
        nonlocal arrived
        arrived += size
        if arrived > WEIGHTS.size // 2:
            options.stopped.set()

    stopping = DownloadOptions(0.0, count, options.stopped)
    with pytest.raises(DeployError):
        fetch(Source(server.url, TOKEN, direct=True), model, here, stopping)
    assert not (here / SHARD).exists()
    done = fetch(Source(server.url, TOKEN, direct=True), model, here, DownloadOptions())
    assert done.bytes_fetched < 0.6 * WEIGHTS.size
    assert (here / SHARD).read_bytes() == read(WEIGHTS)


def test_a_damaged_or_short_file_is_refused_and_not_left_half(
    server: WeightsServer, model: LockedModel, place: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    shutil.copy(place / SHARD, whole)
    with (place / SHARD).open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    with pytest.raises(DownloadFailed, match="checksum differs"):
        take(server, model, tmp_path / "here")
    (place / SHARD).write_bytes(b"short")
    with pytest.raises(DownloadFailed, match="stalled"):
        take(server, model, tmp_path / "here")
    assert not (tmp_path / "here" / SHARD).exists()
    shutil.copy(whole, place / SHARD)
    take(server, model, tmp_path / "here")
    assert (tmp_path / "here" / SHARD).read_bytes() == read(WEIGHTS)


def test_ranges_are_those_of_http(server: WeightsServer) -> None:
    path = f"/o/target/resolve/{'c' * 40}/config.json"
    key = f"Bearer {TOKEN.reveal()}"
    status, body, headers = asked(server, path, Authorization=key, Range="bytes=1-1")
    assert (status, body, headers["Content-Range"]) == (206, b"}", "bytes 1-1/2")
    assert asked(server, path, Authorization=key, Range="bytes=0-99")[:2] == (206, b"{}")
    assert asked(server, path, Authorization=key, Range="bytes=2-3")[0] == 416
    # a part of another version of the file is of no use
    assert asked(server, path, Authorization=key, Range="bytes=1-1", If_Range='"old"')[:2] == (200, b"{}")

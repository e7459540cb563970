"""Hubs that answer something else: the download ends in an error with its own exit code, in bounded time and memory."""

import hashlib
import json
import resource
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.doctor.network import ask_hub
from dflash_deploy.errors import DeployError, DownloadFailed, ExitCode, HubUnreachable, NoRoom, SettingsRefused
from dflash_deploy.redact import Secret
from dflash_deploy.weights import download as transfer
from dflash_deploy.weights import hub as asking
from dflash_deploy.weights.download import DownloadOptions
from dflash_deploy.weights.fetch import fetch
from dflash_deploy.weights.hub import Source, resolve, retry_after, without_credentials
from dflash_deploy.weights.lock import LockedFile, LockedModel
from tests.support.odd_answers import HEAD, MIB, ODD_BODIES, Reply, answering, as_json, bomb, endless

COMMIT = "0" * 40
MODEL: dict[str, Any] = {"id": "o/target", "sha": COMMIT, "siblings": []}
FILE = LockedFile("config.json", 2, hashlib.sha256(b"{}").hexdigest())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(asking, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(asking, "ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr(asking, "TRIES", 2)
    monkeypatch.setattr(transfer, "HEADERS_TIMEOUT", 0.5)
    monkeypatch.setattr(transfer, "FRUITLESS", 2)


def asked(url: str, repo: str = "o/target") -> DeployError:
    """The error that asking for a repository ends with."""
    with pytest.raises(DeployError) as refused:
        resolve(Source.of(Secret(""), url), repo, None)
    assert len(refused.value.message) < 600
    return refused.value


def sibling(**more: Any) -> dict[str, Any]:
    """The answer for a repository with one file."""
    return {**MODEL, "siblings": [{"rfilename": "config.json", "size": 2, "blobId": "0" * 40, **more}]}


@pytest.mark.parametrize("body", ODD_BODIES)
def test_an_odd_body_is_no_repository(body: str) -> None:
    with answering(Reply(ODD_BODIES[body])) as url:
        assert isinstance(asked(url), HubUnreachable)


@pytest.mark.parametrize(
    "said",
    [
        {**MODEL, "sha": None},
        {**MODEL, "sha": "../.."},
        {**MODEL, "id": "../../etc/passwd"},
        {**MODEL, "siblings": {}},
        {**MODEL, "siblings": [None]},
        sibling(rfilename=None),
        sibling(size=-5),
        sibling(size=2**63),
        sibling(blobId="../../x"),
        sibling(lfs={"sha256": "x", "size": 5}),
        sibling(lfs={"sha256": "0" * 64, "size": 1e9}),
    ],
    ids=lambda said: json.dumps(said)[:60],
)
def test_values_of_another_kind_are_named(said: dict[str, Any]) -> None:
    with answering(as_json(said)) as url:
        assert "unexpected answer for o/target: it has an unexpected value" in asked(url).message


def test_hundreds_of_thousands_of_files_are_refused() -> None:
    with answering(as_json({**MODEL, "siblings": [{"rfilename": "a"}] * 300_000})) as url:
        assert "100000 items" in asked(url).message


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "a//b", "a" * 300, "é" * 200, "a\nb", "a\x1bb", ".dflash-verified.json", ".pull/lock"],
)
def test_names_that_cannot_be_files_of_a_model_are_left_out(name: str) -> None:
    with answering(as_json(sibling(rfilename=name))) as url:
        assert resolve(Source.of(Secret(""), url), "o/target", None).files == ()


@pytest.mark.parametrize("status", [204, 304, 400, 404, 418, 500])
def test_no_other_status_is_an_answer(status: int) -> None:
    with answering(Reply(b"", status)) as url:
        assert asked(url).exit_code is ExitCode.DOWNLOAD


@pytest.mark.parametrize(
    "place", ["/again", "http://[::1", "//", "http://h:99999999/", "ftp://x/", "\x7f", "http://é..b/"]
)
def test_redirects_end(place: str) -> None:
    with answering(Reply(b"", 302, {"Location": place})) as url:
        assert isinstance(asked(url), HubUnreachable)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(lambda: endless(HEAD, b" " * MIB), id="endless body"),
        pytest.param(bomb, id="gzip bomb"),
        pytest.param(lambda: endless(HEAD, b" ", 0.1), id="byte by byte"),
        pytest.param(lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="1xx without an end"),
        pytest.param(Reply(b"x", headers={"Content-Encoding": "gzip"}), id="no gzip"),
        pytest.param(Reply(b"x", headers={"Content-Encoding": "br"}), id="another encoding"),
    ],
)
def test_time_and_memory_are_bounded(script: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with answering(script) as url:
        assert isinstance(asked(url), HubUnreachable)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


@pytest.mark.parametrize("url", ["http://h:99999", "http://h:x", "ftp://h", "h", "http://", "http://bob:hunter2@[::1"])
def test_an_endpoint_that_is_no_address_is_a_wrong_setting(url: str) -> None:
    refused = asked(url)
    assert isinstance(refused, SettingsRefused)
    assert "hunter2" not in f"{refused.message} {refused.hint}"


@pytest.mark.parametrize(
    "repo", ["../../etc/passwd", "a/b/c", "", "a b", "/a", "a/", "..", "a/..", "http://x/y", "a" * 500]
)
def test_a_repository_without_a_valid_name_is_a_wrong_setting(repo: str) -> None:
    assert asked("http://127.0.0.1:9", repo).exit_code is ExitCode.USAGE


def test_the_password_of_an_endpoint_is_not_printed() -> None:
    for reply in (Reply(b"", 404), Reply(b"", 418), Reply(b"[]"), Reply(b"", 401)):
        with answering(reply) as url:
            refused = asked(url.replace("http://", "http://bob:hunter2@"))
            assert "hunter2" not in f"{refused.message} {refused.hint}"
    assert "hunter2" not in f"{asked('http://bob:hunter2@127.0.0.1:9')}"
    shown = {without_credentials(url) for url in ("http://bob:hun@ter2/@h/x", "http://h/x", "bob:hunter2@h/x")}
    assert shown == {"http://h/x", "h/x"}


@pytest.mark.parametrize(
    ("name", "value"), [("ALL_PROXY", "socks5://h:1"), ("ALL_PROXY", "gopher://h:1"), ("SSL_CERT_FILE", "/nowhere.pem")]
)
def test_an_environment_that_cannot_be_used_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    refused = asked("http://127.0.0.1:9")
    assert refused.exit_code is ExitCode.USAGE
    assert name in f"{refused.message} {refused.hint}"
    answer = ask_hub("http://127.0.0.1:9", Secret(""), "o/target")
    assert (answer.problem, answer.fix) == (refused.message, refused.hint)


@pytest.mark.parametrize(
    "value", ["²", "-1", "x", "9" * 400, "Mon, 99 Foo 2024", "Mon, 01 Jan 99999999999 00:00:00 GMT", "\x00"]
)
def test_an_odd_retry_after_is_ignored(value: str) -> None:
    assert retry_after(value) is None


def test_a_token_that_cannot_be_sent_is_not_printed() -> None:
    with pytest.raises(DownloadFailed) as refused:
        resolve(Source.of(Secret("hf_hunter2\n"), "http://127.0.0.1:9"), "o/target", None)
    assert "hunter2" not in refused.value.message


def download(url: str, directory: Path) -> None:
    """Download one file of two bytes."""
    fetch(Source.of(Secret(""), url), LockedModel("o/target", COMMIT, (FILE,)), directory, DownloadOptions())


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"{}", 206, {"Content-Range": f"bytes 0-1/{'9' * 5000}"}),
        Reply(b"{}", 206, {"Content-Range": "bytes ²-1/2"}),
        Reply(b"xx", 200, {"ETag": "é" * 10}),
        Reply(b"xx", 200, {"ETag": "x" * 50_000}),
        Reply(b"", 302, {"Location": "/again"}),
        Reply(b"", 302, {"Location": "http://[::1"}),
        Reply(b"", 302, {"Location": "http://h:99999999/"}),
        Reply(b"", 200),
        Reply(b"", 204),
        Reply(b"", 429, {"Retry-After": "²"}),
        pytest.param(lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="1xx without an end"),
        pytest.param(lambda: endless(HEAD, b"x" * MIB), id="endless body"),
    ],
    ids=str,
)
def test_an_odd_file_is_a_failed_download(reply: Any, tmp_path: Path) -> None:
    with answering(reply) as url, pytest.raises(DownloadFailed):
        download(url, tmp_path / "weights")
    assert not (tmp_path / "weights" / "config.json").exists()


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    staging, precious = tmp_path / "weights" / ".pull", tmp_path / "precious"
    staging.mkdir(parents=True)
    (staging / "lock").symlink_to(precious)
    with pytest.raises(NoRoom, match="symbolic links"):
        download("http://127.0.0.1:9", tmp_path / "weights")
    assert not precious.exists()

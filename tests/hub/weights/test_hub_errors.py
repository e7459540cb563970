"""Each thing between this machine and a file of the Hub has its own error, the same one from `pull` and `doctor`."""

import http.server
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from dflash_deploy.doctor import network
from dflash_deploy.doctor.network import ask_hub
from dflash_deploy.errors import (
    DeployError,
    DownloadFailed,
    ExitCode,
    HubUnreachable,
    RepositoryGated,
    RepositoryMissing,
    TokenRefused,
)
from dflash_deploy.redact import Secret
from dflash_deploy.weights import download as transfer
from dflash_deploy.weights import hub as asking
from dflash_deploy.weights.download import DownloadOptions
from dflash_deploy.weights.fetch import fetch
from dflash_deploy.weights.hub import Source, resolve
from dflash_deploy.weights.lock import LockedModel
from tests.support.box import CONFIG, DRAFTER, DRAFTS, TARGET, Box
from tests.support.cli import dflash, edit_env
from tests.support.hub import Generated, Hub
from tests.support.hub.faults import Answer, Fault, broken, too_many
from tests.support.odd_answers import Reply, answering
from tests.support.ports import free_port
from tests.support.serving import Quiet, listening, serving

REPO, SHARD = "o/target", "model.safetensors"
PAGE = {"Content-Type": "text/html; charset=utf-8"}
BLOCKED = "<html><title>Blocked</title></html>"
PASSWORD = "hunter2"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(asking, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(asking, "TRIES", 2)
    monkeypatch.setattr(transfer, "FRUITLESS", 2)
    with Hub(accounts={"hf_reader": "reader", "hf_other": "other"}) as running:
        running.add(REPO, {"config.json": "{}", SHARD: Generated(2_000_000, seed=7)})
        yield running


def told(endpoint: str, kind: type[DeployError], token: str = "", repo: str = REPO) -> str:
    """The one line and the hint of the error that `pull` ends with; `doctor` shows the same."""
    with pytest.raises(kind) as refused:
        resolve(Source.of(Secret(token), endpoint), repo, None)
    error = refused.value
    answer = ask_hub(endpoint, Secret(token), repo)
    check = network.judge_hub("", answer, token=bool(token), missing=True, gated="")
    assert (check.saw, check.fix) == (error.message, error.hint)
    assert error.exit_code is ExitCode.DOWNLOAD
    said = f"{error.message}\n{error.hint}"
    assert said.count("\n") == 1
    assert PASSWORD not in said
    assert not token or token not in said
    return said


@pytest.mark.parametrize("bare", [False, True], ids=["with a code", "without a code"])
@pytest.mark.parametrize("access", ["public", "gated", "private"])
@pytest.mark.usefixtures("hub")
def test_an_expired_token_is_refused_for_each_repository(
    access: Literal["public", "gated", "private"], bare: bool
) -> None:
    with Hub(bare_401=bare) as hub:
        hub.add("o/own", {"config.json": "{}"}, access=access)
        said = told(hub.endpoint, TokenRefused, "hf_expired", "o/own")
    assert "rejects the token in HF_TOKEN (401), even for a public repository" in said
    assert "make a new one at https://huggingface.co/settings/tokens" in said
    assert "or clear the line" in said


def test_a_repository_that_does_not_exist_is_named(hub: Hub) -> None:
    assert "has no o/typo\ncheck whether it was renamed; if it is private" in told(
        hub.endpoint, RepositoryMissing, repo="o/typo"
    )
    assert told(hub.endpoint, RepositoryMissing, "hf_reader", "o/typo").endswith("renamed")
    with Hub(bare_401=True) as bare:
        assert "has no o/typo" in told(bare.endpoint, RepositoryMissing, repo="o/typo")


@pytest.mark.parametrize("token", ["", "hf_other"])
def test_a_gated_repository_is_named_with_its_page(hub: Hub, token: str) -> None:
    hub.faults(f"/api/models/{REPO}", Answer(403, {"X-Error-Code": "GatedRepo"}), stage="api", method="*", forever=True)
    assert f"accept them on {hub.endpoint}/{REPO}" in told(hub.endpoint, RepositoryGated, token)


@pytest.mark.parametrize("fault", [too_many(0), broken(503), broken(502)], ids=["429", "503", "502"])
def test_a_busy_hub_is_only_a_warning_of_doctor(hub: Hub, fault: Fault) -> None:
    hub.faults(f"/api/models/{REPO}", fault, stage="api", method="*", forever=True)
    assert "try again later" in told(hub.endpoint, HubUnreachable)
    answer = ask_hub(hub.endpoint, Secret(""), REPO)
    assert network.judge_hub("", answer, token=False, missing=True, gated="").status == "warning"


PROXIES = [
    # scheme of the endpoint, variable, credentials
    ("https", "HTTPS_PROXY", ""),
    ("https", "https_proxy", f"ada:{PASSWORD}@"),
    ("https", "ALL_PROXY", f"ada:{PASSWORD}@"),
    ("http", "HTTP_PROXY", ""),
    ("http", "all_proxy", f"ada:{PASSWORD}@"),
]


@pytest.mark.parametrize(("scheme", "variable", "login"), PROXIES)
def test_a_proxy_that_wants_a_login_is_named_with_its_variable(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, scheme: str, variable: str, login: str
) -> None:
    with answering(Reply(BLOCKED.encode(), 407, {**PAGE, "Proxy-Authenticate": "Basic"})) as proxy:
        monkeypatch.setenv(variable, proxy.replace("://", f"://{login}"))
        said = told(f"{scheme}://hub.example", HubUnreachable)
        assert f"the proxy {proxy} ({variable}) asks for a user name and password (407)" in said
        assert f"put both before the host in {variable}" in said
    if scheme == "https":
        with answering(Reply(b"", 407)) as proxy:
            # only the host of large files is behind the proxy
            hub.faults(SHARD, Answer(302, {"Location": "https://cdn.example/x"}), stage="resolve", forever=True)
            monkeypatch.setenv(variable, proxy)
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            assert "asks for a user name and password (407)" in stalled(hub)


@pytest.mark.parametrize(("status", "retried"), [(403, 1), (451, 1), (502, 2), (503, 2)])
def test_a_proxy_that_does_not_connect_is_named_with_the_host_to_allow(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, status: int, retried: int
) -> None:
    asked = []

    def counted() -> Reply:
        asked.append(1)
        return Reply(b"", status)

    with answering(counted) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        said = told("https://hub.example", HubUnreachable)
        assert f"the proxy {proxy} (HTTPS_PROXY) did not connect to hub.example: {status}" in said
        assert "have hub.example allowed there" in said
    # once more for doctor
    assert len(asked) == retried + 1


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", ["127.0.0.1", "proxy.invalid"])
def test_a_proxy_that_cannot_be_reached_is_not_taken_for_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, scheme: str, host: str
) -> None:
    proxy = f"http://ada:{PASSWORD}@{host}:{free_port()}"
    monkeypatch.setenv(f"{scheme}_proxy", proxy)
    said = told(f"{scheme}://hub.example", HubUnreachable)
    assert f"the proxy http://{proxy.rpartition('@')[2]} ({scheme}_proxy) cannot be reached" in said
    assert "unset it" in said
    # without a request through it, a proxy is no cause
    monkeypatch.setenv("NO_PROXY", "hub.example,127.0.0.1")
    assert f"{scheme}://hub.example cannot be reached" in told(f"{scheme}://hub.example", HubUnreachable)


@pytest.mark.parametrize("status", [200, 401, 403, 404, 451, 511])
@pytest.mark.parametrize("token", ["", "hf_reader"])
def test_a_page_of_a_filter_is_not_an_answer_of_the_hub(hub: Hub, status: int, token: str) -> None:
    page = Answer(status, PAGE, BLOCKED)
    hub.faults(f"/api/models/{REPO}", page, stage="api", method="*", forever=True)
    said = told(hub.endpoint, HubUnreachable, token)
    assert f"{hub.endpoint} returned a web page ({status}) in place of {REPO}\n" in said
    assert "have 127.0.0.1 allowed" in said


@pytest.mark.parametrize("status", [302, 303, 307])
def test_a_sign_in_page_elsewhere_is_named_with_its_host(hub: Hub, status: int) -> None:
    class SignIn(Quiet, http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(200, "text/html", BLOCKED.encode())

        do_HEAD = do_GET  # noqa: N815 - the name is the base class's

    with listening(SignIn) as portal:
        there = portal.replace("127.0.0.1", "localhost")
        moved = Answer(status, {"Location": f"{there}/login?token=1"})
        hub.faults(f"/api/models/{REPO}", moved, stage="api", method="*", forever=True)
        said = told(hub.endpoint, HubUnreachable, "hf_reader")
    assert f"{there}, where {hub.endpoint} redirects, returned a web page (200)" in said


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("token", ["", "hf_reader"])
def test_a_mirror_that_redirects_is_not_the_host_that_cannot_be_reached(hub: Hub, status: int, token: str) -> None:
    """A mirror answered 308 to huggingface.co, which was not reachable, and the mirror was blamed (unslothai#1353)."""
    for host in (f"localhost:{free_port()}", "huggingface.invalid"):
        moved = Answer(status, {"Location": f"http://{host}/api/models/{REPO}"})
        hub.heal()
        hub.faults(f"/api/models/{REPO}", moved, stage="api", method="*", forever=True)
        said = told(hub.endpoint, HubUnreachable, token)
        assert f"http://{host}, where {hub.endpoint} redirects, cannot be reached" in said
        assert f"check that this network reaches {host.partition(':')[0]}" in said


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("token", ["hf_reader", "hf_expired"])
def test_a_token_that_a_redirect_leaves_behind_is_not_called_expired(hub: Hub, status: int, token: str) -> None:
    with answering(Reply(b"{}", status)) as real:
        there = real.replace("127.0.0.1", "localhost")
        moved = Answer(308, {"Location": f"{there}/api/models/{REPO}"})
        with Hub(accounts={token: "reader"}) as mirror:
            mirror.faults(f"/api/models/{REPO}", moved, stage="api", method="*", forever=True)
            said = told(mirror.endpoint, HubUnreachable, token)
    assert f"{there}, where {mirror.endpoint} redirects, returned {status} for {REPO}, without the token" in said
    assert "set HF_ENDPOINT to the host that needs it" in said


def test_a_name_that_does_not_exist_and_a_closed_port_are_the_hubs(hub: Hub) -> None:
    for endpoint in ("http://hub.invalid", f"http://127.0.0.1:{free_port()}", f"https://localhost:{free_port()}"):
        said = told(endpoint, HubUnreachable)
        assert said.startswith(f"{endpoint} cannot be reached: ")
        assert "HTTPS_PROXY" in said


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[str]:
    """A hub whose certificate is its own, as a proxy shows one that looks into TLS."""
    key, certificate = tmp_path / "key.pem", tmp_path / "own.crt"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")
    name = ("-subj", "/CN=filter", "-addext", "subjectAltName=DNS:localhost")
    command = ["openssl", "req", "-x509", *curve, *name, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)

    class Nothing(Quiet, http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(404, "application/json", b"{}")

        do_HEAD = do_GET  # noqa: N815 - the name is the base class's

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield f"https://localhost:{server.server_port}"


def test_a_certificate_of_a_proxy_is_named_with_the_variable_for_it(
    hub: Hub, untrusted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = told(untrusted, HubUnreachable)
    assert "self-signed certificate" in said
    assert "set SSL_CERT_FILE" in said
    assert "check the clock" in said
    hub.faults(
        f"/api/models/{REPO}", Answer(308, {"Location": f"{untrusted}/x"}), stage="api", method="*", forever=True
    )
    said = told(hub.endpoint, HubUnreachable)
    assert f"{untrusted}, where {hub.endpoint} redirects, cannot be reached" in said
    assert "set SSL_CERT_FILE" in said
    hub.heal()
    hub.faults(SHARD, Answer(302, {"Location": f"{untrusted}/x"}), stage="resolve", forever=True)
    assert "set SSL_CERT_FILE" in stalled(hub)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.crt"))
    # the hint is right
    assert "has no o/target" in told(untrusted, RepositoryMissing)
    assert "not valid for '127.0.0.1'" in told(untrusted.replace("localhost", "127.0.0.1"), HubUnreachable)


def stalled(hub: Hub, token: str = "") -> str:
    """The line and the hint of a download that ends."""
    source = Source.of(Secret(token), hub.endpoint)
    there = resolve(source, REPO, None)
    wanted = LockedModel(there.repo, there.commit, there.files)
    with pytest.raises(DownloadFailed) as failed:
        fetch(source, wanted, Path(os.environ["HF_HOME"]) / "m", DownloadOptions())
    return f"{failed.value.message}\n{failed.value.hint}"


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize("stage", ["resolve", "body"])
def test_a_filter_before_the_files_alone_is_named(hub: Hub, stage: Literal["resolve", "body"], status: int) -> None:
    hub.faults(SHARD, Answer(status, PAGE, BLOCKED), stage=stage, forever=True)
    said = stalled(hub)
    assert f"returned a web page ({status}) in place of {REPO}" in said
    assert (hub.cdn if stage == "body" else hub.endpoint) in said
    assert "have 127.0.0.1 allowed" in said


@pytest.mark.parametrize("host", ["cdn.invalid", "localhost:1"])
def test_a_host_of_large_files_that_cannot_be_reached_is_named(hub: Hub, host: str) -> None:
    hub.faults(SHARD, Answer(302, {"Location": f"http://{host}/x"}), stage="resolve", forever=True)
    said = stalled(hub)
    assert f"download stalled at 0 of 2000000 bytes: http://{host}, where {hub.endpoint} redirects" in said
    assert "then run `dflash-deploy pull` again to resume" in said


@pytest.fixture
def box(hub: Hub, tmp_path: Path) -> Box:
    hub.add("o/target", {"config.json": CONFIG, "tokenizer.json": "{}", SHARD: TARGET})
    hub.add("o/drafter", {"config.json": DRAFTS, SHARD: DRAFTER})
    return Box(hub, tmp_path)


COMMANDS = [("pull",), ("up",), ("plan", "--ask-engine"), ("doctor",)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_says_it_in_the_same_words(box: Box, command: tuple[str, ...]) -> None:
    with answering(Reply(BLOCKED.encode(), 407, PAGE)) as proxy:
        login = proxy.replace("://", f"://ada:{PASSWORD}@")
        environment = {**box.environment, "HTTP_PROXY": login, "http_proxy": login}
        ran = dflash(*command, at=box.directory, environment=environment)
        said = " ".join((ran.out + ran.err).split())
        assert f"{proxy} (http_proxy) asks for a user name and password (407)" in said
        assert "put both before the host in http_proxy" in said
        assert PASSWORD not in said
    edit_env(box.directory, HF_TOKEN="hf_expired_token_of_somebody")
    ran = dflash(*command, at=box.directory, environment=box.environment)
    said = " ".join((ran.out + ran.err).split())
    assert "rejects the token in HF_TOKEN (401)" in said
    assert "or clear the line" in said
    assert "hf_expired" not in said


def test_doctor_asks_where_pull_downloads_from(hub: Hub, box: Box) -> None:
    """The mirror in `.env` comes first, and a token of the shell is not that of the deployment."""
    with (box.directory / ".env").open("a") as file:
        file.write(f"HF_ENDPOINT={hub.endpoint}\n")
    environment = {**box.environment, "HF_ENDPOINT": "http://hub.invalid", "HF_TOKEN": "hf_expired"}
    checks = dflash("doctor", "--json", at=box.directory, environment=environment).document["data"]["checks"]
    found = next(check for check in checks if check["name"] == "hub")
    assert (found["status"], found["saw"]) == ("ok", f"{hub.endpoint} responds; HF_TOKEN is not set")
    assert not any(seen.authorised for seen in hub.requests())

"""The page of `open` in Chromium, with the real llama.cpp: what it shows, and whom it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from dflash_deploy.client.images import plain_png
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.features.page.guard import is_of_another_user
from dflash_deploy.serve.extras import install_command
from tests.support.answering import KEY, answer, answering, choice
from tests.support.browser import Page, browser_or_skip
from tests.support.cli import dflash
from tests.support.llamacpp_native import init, server_of
from tests.support.opened_page import Opened, ask, bring, click, ended, opened

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
MARKDOWN = "\n\n[a](javascript:alert(1)) ![b](http://b.example/c.png) **d**"
HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that answers and was measured."""
    place = tmp_path_factory.mktemp("page")
    init(place)
    dflash("up", at=place).succeeded()
    told = ("--baseline", "--concurrency", "1", "--workload", "own", "--requests", "4", "--repeats", "1")
    dflash("bench", *told, at=place).succeeded()
    yield place
    dflash("down", at=place).succeeded()


@pytest.fixture(scope="module")
def shown(deployment: Path) -> Iterator[Opened]:
    """A page for the browser."""
    with opened(at=deployment) as page:
        yield page


@pytest.fixture(scope="module")
def entered(shown: Opened) -> Iterator[Page]:
    """A browser that has the cookie."""
    with browser_or_skip("the page") as tab:
        tab.open(shown.address)
        tab.until("document.querySelector('textarea')")
        yield tab


@pytest.fixture
def tab(entered: Page, shown: Opened) -> Iterator[Page]:
    """The page with an empty conversation, 1280 pixels wide."""
    entered.open(shown.origin, width=1280)
    entered.until("document.querySelector('textarea')")
    click(entered, "New conversation")
    entered.until("!document.querySelector('.asked')")
    yield entered
    assert entered.console() == []


def test_an_answer_has_its_speed_and_shows_the_tokens_of_each_step(tab: Page, deployment: Path) -> None:
    tab.traffic()
    ask(tab, QUESTION)
    assert ended(tab) == ANSWER
    figures = tab.evaluate("return document.querySelector('[role=status]').innerText")
    assert re.fullmatch(
        r"[\d.]+ tokens/s, 9 tokens, first after [\d.]+ s, acceptance length 8.00, "
        r"without drafts [\d.]+ tokens/s \(bench\)",
        figures,
    )
    tab.evaluate("document.querySelector('.q-toggle').click()")
    steps = tab.until("[...document.querySelectorAll('.steps span')].map(one => [one.className, one.innerText])")
    assert "".join(text for _, text in steps).strip() == ANSWER
    assert [name for name, _ in steps] == ["step0", "step1"][: len(steps)]
    assert len(steps[-1][1].split()) > 2, "the accepted drafts are in the shade of their step"
    click(tab, "Refresh")
    tab.until("document.querySelector('.facts').innerText.includes('acceptance length')")
    assert Deployment(deployment).key.reveal() not in tab.traffic() + tab.evaluate("return document.body.outerHTML")


def test_a_conversation_is_there_after_the_page_is_loaded_again(tab: Page, shown: Opened) -> None:
    ask(tab, QUESTION)
    ended(tab)
    tab.open(shown.origin, width=1280)
    assert ended(tab) == ANSWER
    assert tab.evaluate("return document.querySelector('.asked').innerText") == QUESTION


@pytest.mark.parametrize("event", ["drop", "paste"])
def test_a_picture_that_is_dropped_or_pasted_goes_with_the_question(event: str, tab: Page) -> None:
    bring(tab, event, "red.png", plain_png((220, 20, 20), 320, 240))
    tab.until("document.querySelector('footer img')")
    ask(tab, "What colour is this image?")
    assert "red" in ended(tab).lower()
    assert tab.evaluate("return document.querySelector('.asked img').naturalWidth") == 240
    assert not tab.evaluate("return document.querySelector('footer img')")


def test_a_file_that_is_no_picture_is_refused_by_name(tab: Page) -> None:
    bring(tab, "drop", "notes.png", b"these are notes")
    assert "notes.png is not a picture" in tab.until("document.querySelector('.q-notification')?.innerText")
    assert not tab.evaluate("return document.querySelector('footer img')")


def test_an_answer_can_be_stopped_before_it_begins_and_the_next_one_arrives(tab: Page, deployment: Path) -> None:
    engine = server_of(deployment)
    os.kill(engine, signal.SIGSTOP)
    try:
        ask(tab, "Count from 1 to 50.")
        click(tab, "Stop")
        assert ended(tab) == ""
    finally:
        os.kill(engine, signal.SIGCONT)
    ask(tab, QUESTION)
    tab.until("document.querySelectorAll('.answer').length === 2")
    assert ended(tab) == ANSWER


def test_an_answer_that_is_stopped_in_its_middle_stays_as_it_is(entered: Page, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    with (
        answering([*answer(3)[:4], b""]) as url,
        opened("--url", url, "--key-file", str(tmp_path / "key"), at=tmp_path) as page,
    ):
        entered.open(page.address)
        entered.until("document.querySelector('textarea')")
        ask(entered, QUESTION)
        entered.until("document.querySelector('.answer')?.innerText.trim() === 'word word word'")
        click(entered, "Stop")
        assert ended(entered) == "word word word"
        assert "stopped" in entered.evaluate("return document.querySelector('[role=status]').innerText")
        assert entered.console() == []
        entered.open("about:blank")


def test_the_button_opens_a_choice_of_pictures(tab: Page, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(plain_png((220, 20, 20), 320, 240))
    with tab.chosen_files(tmp_path / "red.png"):
        click(tab, "Add pictures", as_a_person=True)
    tab.until("document.querySelector('footer img')")
    click(tab, "Remove pictures")
    tab.until("!document.querySelector('footer img')")


def test_a_question_is_text_and_never_html(tab: Page) -> None:
    ask(tab, HOSTILE)
    ended(tab)
    assert tab.evaluate("return document.querySelector('.asked').innerText") == HOSTILE
    assert tab.evaluate("return document.title") == "tiny - dflash-deploy"


def test_what_a_model_writes_runs_nothing_and_fetches_nothing(tmp_path: Path) -> None:
    written = [choice(content=text) for text in (HOSTILE, MARKDOWN)]
    (tmp_path / "key").write_text(KEY)
    with (
        answering([*written, *answer(1)[2:]]) as url,
        browser_or_skip("the page") as tab,
        opened("--url", url, "--key-file", str(tmp_path / "key"), at=tmp_path) as page,
    ):
        tab.open(page.address)
        tab.until("document.querySelector('textarea')")
        ask(tab, "Hello")
        assert HOSTILE in ended(tab)
        assert tab.evaluate("return document.querySelector('.answer strong').innerText") == "d"
        assert not tab.evaluate("return document.querySelector('.answer :is(img, script, [onerror], [href^=java])')")
        assert tab.evaluate("return document.title") == "answering - dflash-deploy"
        asked = tab.traffic()
        assert "b.example/c.png" in asked, "the answer itself arrived"
        requested = [json.loads(line)["message"] for line in asked.splitlines()]
        urls = [one["params"]["request"]["url"] for one in requested if one["method"] == "Network.requestWillBeSent"]
        assert {httpx.URL(one).host for one in urls if one.startswith("http")} == {"127.0.0.1"}
        assert KEY not in asked


def test_state_figures_start_and_clients_are_beside_it(tab: Page) -> None:
    drawer = "document.querySelector('.q-drawer').innerText"
    beside = tab.until(f"{drawer}.includes('ready') && {drawer}")
    for part in ("memory", "Tokens per second, 20", "first generation", "dflash-deploy keys show --reveal"):
        assert part in beside
    assert tab.until("document.querySelector('.nicegui-echart canvas')?.width > 200")
    assert (
        tab.evaluate("""return [...document.querySelectorAll('button, textarea, input:not([type=file]), img')]
        .filter(one => one.offsetParent && !one.ariaLabel && !one.alt && !one.closest('label, [aria-label]'))
        .map(one => one.outerHTML)""")
        == []
    )


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_a_desk_in_light_and_dark(width: int, dark: bool, tab: Page, shown: Opened) -> None:
    ask(tab, "x" * 300)
    ended(tab)
    tab.open(shown.origin, width=width, dark=dark)
    tab.until("document.querySelector('.answer')")
    tab.until("document.documentElement.scrollWidth === innerWidth")
    drawer = "document.querySelector('.q-drawer').getBoundingClientRect()"
    if width < 1000:
        tab.until(f"{drawer}.left >= innerWidth")
        click(tab, "Engine and clients")
    assert tab.until(f"{drawer}.left < innerWidth && {drawer}.right <= innerWidth")
    bright_text = "getComputedStyle(document.querySelector('.asked')).color.match(/[0-9]+/g)[0] > 128"
    assert tab.evaluate(f"return {bright_text}") is dark


@pytest.fixture(scope="module")
def guarded(deployment: Path) -> Iterator[Opened]:
    """A page whose token nobody has used."""
    with opened(at=deployment) as page:
        yield page


def test_a_token_lets_one_client_in_and_is_dead_then(deployment: Path) -> None:
    with opened(at=deployment) as page:
        wrong = httpx.get(f"{page.origin}/?token=wrong", trust_env=False)
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
        first = httpx.get(page.address, trust_env=False)
        assert first.status_code == 200
        assert "HttpOnly; SameSite=Strict" in first.headers["set-cookie"]
        again = httpx.get(page.address, trust_env=False)
        assert (again.status_code, "set-cookie" in again.headers) == (403, False)
        assert "dflash-deploy open" in again.text
        cookie = first.headers["set-cookie"].partition(";")[0]
        own = httpx.get(page.origin, headers={"Cookie": cookie}, trust_env=False)
        assert own.status_code == 200
        assert "frame-ancestors 'none'" in own.headers["content-security-policy"]
        assert Deployment(deployment).key.reveal() not in own.text
        check_other_pages(page, cookie)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root opens a connection of another user")
@pytest.mark.parametrize(("user", "seen"), [(65534, True), (1000, False), (0, False)])
def test_a_connection_of_another_user_is_seen(user: int, seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        os.seteuid(user)
        try:
            connection = socket.create_connection(("127.0.0.1", port))
        finally:
            os.seteuid(0)
        with connection:
            assert is_of_another_user(connection.getsockname(), port) is seen


def check_other_pages(page: Opened, cookie: str) -> None:
    """Even with the cookie, another host name or another origin gets nothing."""

    def asked(method: str = "GET", path: str = "/", **headers: str) -> int:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.request(
            method, page.origin + path, headers={"Cookie": cookie, **sent}, trust_env=False
        ).status_code

    for host in ("evil.example", f"evil.example:{page.port}", "127.0.0.1:1", f"127.0.0.1.evil.example:{page.port}"):
        assert asked(Host=host) == 421
    assert asked(Host=f"localhost:{page.port}") == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"https://127.0.0.1:{page.port}"):
        assert asked(Origin=origin) == 403
        assert asked("POST", "/_nicegui/client/x/upload/1", Origin=origin) == 403
        assert upgraded(page, Cookie=cookie, Origin=origin) == 403
    assert asked("POST", "/_nicegui/client/x/upload/1") == 403
    assert upgraded(page, Cookie=cookie) == 403
    assert upgraded(page, Origin=page.origin) == 403
    assert upgraded(page, Cookie=cookie, Origin=page.origin) == 101


def upgraded(page: Opened, **headers: str) -> int:
    """The answer to a request for a WebSocket."""
    wanted = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    with closing(HTTPConnection("127.0.0.1", page.port, timeout=60)) as connection:
        connection.request("GET", "/_nicegui_ws/socket.io/?EIO=4&transport=websocket", headers=wanted | key | headers)
        with connection.getresponse() as got:
            return got.status


def test_nothing_is_shown_without_the_cookie_and_nothing_listens_beyond_loopback(guarded: Opened) -> None:
    for path in ("/", "/_nicegui/3.18.0/static/nicegui.js", "/_nicegui_ws/socket.io/?EIO=4&transport=polling", "/docs"):
        assert httpx.get(guarded.origin + path, trust_env=False).status_code == 403
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", guarded.port), timeout=60)
    assert f"ssh -L {guarded.port}:127.0.0.1:{guarded.port} " in guarded.printed


def test_a_picture_above_the_limit_is_refused_before_it_is_read(deployment: Path) -> None:
    with opened(at=deployment) as page:
        cookie = page.enter()
        assert partial_post(page, cookie, ("Content-Length", str(50 * 2**20))) == 413
        assert partial_post(page, cookie, ("Transfer-Encoding", "chunked")) == 411


def partial_post(page: Opened, cookie: str, length: tuple[str, str]) -> int:
    """The answer to a POST of which only the head is sent."""
    with closing(HTTPConnection("127.0.0.1", page.port, timeout=60)) as connection:
        connection.putrequest("POST", "/_nicegui/client/x/upload/1")
        for name, value in (("Cookie", cookie), ("Origin", page.origin), length):
            connection.putheader(name, value)
        connection.endheaders()
        with connection.getresponse() as got:
            return got.status


def test_without_its_packages_the_command_names_the_extra(deployment: Path) -> None:
    ran = dflash("open", at=deployment, first="import sys; sys.modules['nicegui'] = None")
    assert ran.code is ExitCode.PREFLIGHT
    assert ran.err.splitlines()[-1].strip() == f"hint: {install_command('web')}"


def test_an_engine_that_does_not_run_and_a_port_that_is_taken_end_it(tmp_path: Path) -> None:
    init(tmp_path)
    assert dflash("open", at=tmp_path).code is ExitCode.NOT_READY
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert dflash("open", "--port", str(taken.getsockname()[1]), at=tmp_path).code is ExitCode.PREFLIGHT


def test_a_head_without_an_end_is_cut_off(shown: Opened) -> None:
    address = urlsplit(shown.address)
    line, sent = b"x-endless: " + b"x" * 65_000 + b"\r\n", 0
    with socket.create_connection((str(address.hostname), address.port or 0), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        with suppress(OSError):
            while sent < 64 << 20:
                client.sendall(line)
                sent += len(line)
    # 256 KiB, and what the kernel holds
    assert sent < 16 << 20

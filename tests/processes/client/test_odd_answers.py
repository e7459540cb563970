"""Endpoints that answer something else: each request ends in an EndpointError, in bounded time and memory."""

import asyncio
import resource
import time
from collections.abc import Callable
from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.check import unknown_endpoint
from dflash_deploy.checks.run import run_checks
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.stream import streaming_body, time_completion
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.redact import Secret
from tests.support.odd_answers import HEAD, MIB, ODD_BODIES, STREAM, Reply, answering, as_json, bomb, endless
from tests.support.openai_server import KEY, MODEL, Engine, Handler
from tests.support.serving import listening

TIMEOUT = 0.5  # seconds of an answer without an end
PATIENT = 60.0  # seconds that a busy machine has for an answer that has one

REQUESTS: dict[str, Callable[[Endpoint], object]] = {
    "served": lambda endpoint: endpoint.served(),
    "chat": lambda endpoint: endpoint.chat("hi", max_tokens=1),
    "stream": lambda endpoint: endpoint.stream("hi", max_tokens=1),
}


def asked(url: str, *requests: str, timeout: float = PATIENT) -> list[str]:
    """The messages of the errors that these requests end with."""
    said = []
    with Endpoint(url, Secret("key"), "m", timeout=timeout) as endpoint:
        for request in requests:
            with pytest.raises(EndpointError) as refused:
                REQUESTS[request](endpoint)
            said.append(str(refused.value))
    assert all(0 < len(message) < 600 for message in said)
    return said


def message(**more: Any) -> dict[str, Any]:
    """The body of a chat completion with other values."""
    inner = {"content": "hi", **more.pop("message", {})}
    choice = {"message": inner, "finish_reason": "stop", **more.pop("choice", {})}
    return {"id": "x", "choices": [choice], "usage": {"completion_tokens": 1}, **more}


@pytest.mark.parametrize("body", ODD_BODIES)
def test_every_request_refuses_an_odd_body(body: str) -> None:
    with answering(Reply(ODD_BODIES[body])) as url:
        asked(url, *REQUESTS)


def test_an_error_names_no_class_of_this_program() -> None:
    with answering(Reply(b"[]")) as url:
        assert asked(url, "served")[0].endswith("it has an unexpected value: Input should be an object")


@pytest.mark.parametrize("body", ODD_BODIES)
def test_a_stream_refuses_an_odd_event(body: str) -> None:
    # a stream without any event is for its caller to judge
    event = ODD_BODIES[body][:500_000] or b"{"
    with answering(Reply(b"data: " + event + b"\n\n", headers={"Content-Type": "text/event-stream"})) as url:
        assert "unexpected answer" in asked(url, "stream")[0]


@pytest.mark.parametrize("charset", ["zlib", "hex", "idna", "utf-16", "rot13", "bz2", "no-such", "uu", "base64"])
@pytest.mark.parametrize("status", [200, 500])
def test_the_charset_of_the_content_type_is_ignored(charset: str, status: int) -> None:
    headers = {"Content-Type": f"text/event-stream; charset={charset}"}
    with answering(Reply(b"\xff\x01hello\n\n", status, headers)) as url:
        asked(url, "chat")
        with Endpoint(url, Secret("key"), "m") as endpoint:
            assert endpoint.status("GET", "/x") == status
            if status == 200:
                with pytest.raises(EndpointError):
                    endpoint.served()


@pytest.mark.parametrize(
    "said",
    [
        message(message={"content": [{"type": "text", "text": "hi"}]}),
        message(message={"content": 5}),
        message(message={"content": {}}),
        message(message={"tool_calls": 5}),
        message(message={"tool_calls": [{}]}),
        message(message={"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}),
        message(message={"reasoning": []}),
        message(choice={"finish_reason": 5}),
        message(choice={"message": None}),
        message(choice={"logprobs": "x"}),
        message(choices=[]),
        message(choices={}),
        message(choices=None),
        message(choices=[None]),
        message(id=5),
        message(id=[]),
        message(usage=None),
        message(usage=[]),
        message(usage={"completion_tokens": None}),
        message(usage={"completion_tokens": "1"}),
        message(usage={"completion_tokens": 1.5}),
        message(usage={"completion_tokens": -1}),
        message(usage={"completion_tokens": True}),
        message(usage={"completion_tokens": 10**18}),
        message(timings={"draft_n": "x"}),
        message(timings=5),
    ],
    ids=str,
)
def test_values_of_another_kind_are_named(said: dict[str, Any]) -> None:
    with answering(as_json(said)) as url:
        assert "unexpected answer: it has an unexpected value" in asked(url, "chat")[0]


@pytest.mark.parametrize("value", ["Inf", "NaN", "x", "9" * 5000, "-"])
def test_counters_that_cannot_be_counted_are_refused(value: str) -> None:
    text = f"vllm:generation_tokens_total {value}\n"
    reply = Reply(text.encode(), headers={"Content-Type": "text/plain"})
    with (
        answering(reply) as url,
        Endpoint(url, Secret("key"), "m") as endpoint,
        pytest.raises(EndpointError, match="GET /metrics"),
    ):
        endpoint.metrics()


@pytest.mark.parametrize("status", [204, 301, 302, 304, 307, 308])
def test_only_a_success_is_an_answer(status: int) -> None:
    with answering(Reply(b"", status, {"Location": "/elsewhere"})) as url:
        asked(url, *REQUESTS)
        assert status == 204 or f"answered {status}" in asked(url, "served")[0]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="1xx without an end"),
        pytest.param(lambda: endless(b"", b"H", 0.1), id="a status line byte by byte"),
        pytest.param(lambda: endless(HEAD, b" ", 0.1), id="a body byte by byte"),
        pytest.param(lambda: endless(STREAM, b" ", 0.1), id="a line byte by byte"),
        pytest.param(lambda: endless(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n", 0.1), id="headers one by one"),
    ],
)
def test_the_time_limit_holds_for_the_whole_answer(script: Any) -> None:
    with answering(script) as url:
        for request in ("chat", "stream"):
            started = time.monotonic()
            asked(url, request, timeout=TIMEOUT)
            # far less than the answer, which has no end; a busy machine takes its time
            assert time.monotonic() - started < 60 * TIMEOUT


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(lambda: endless(HEAD, b" " * MIB), id="endless body"),
        pytest.param(lambda: endless(STREAM, b"x" * MIB), id="endless line"),
        pytest.param(bomb, id="gzip bomb"),
    ],
)
def test_memory_is_bounded(script: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with answering(script) as url:
        asked(url, *REQUESTS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


@pytest.mark.parametrize("body", ODD_BODIES)
def test_the_load_of_bench_notes_an_odd_event(body: str) -> None:
    event = b"data: " + ODD_BODIES[body][:500_000] + b"\n\n"
    with answering(Reply(event, headers={"Content-Type": "text/event-stream"})) as url:
        assert loaded(url)


def test_the_load_of_bench_ends_an_endless_line() -> None:
    with answering(lambda: endless(STREAM, b"x" * MIB)) as url:
        assert "line of more than" in loaded(url)


@pytest.mark.parametrize(
    "usage", [5, [], {"completion_tokens": "x"}, {"completion_tokens": -1}, {"completion_tokens": 1e3}]
)
def test_the_load_of_bench_counts_valid_usage_only(usage: object) -> None:
    event = as_json({"choices": [{"delta": {"content": "hi"}}], "usage": usage}).content
    with answering(Reply(b"data: " + event + b"\n\n", headers={"Content-Type": "text/event-stream"})) as url:
        assert "did not report usage" in loaded(url)


def loaded(url: str) -> str:
    """The problem that bench notes for one request."""

    async def one() -> str:
        with Endpoint(url, Secret("key"), "m") as endpoint:
            async with endpoint.async_session(1) as session:
                return (await time_completion(session, streaming_body({"model": "m"}))).problem

    return asyncio.run(one())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9"),
        ("ALL_PROXY", "gopher://127.0.0.1:9"),
        ("HTTPS_PROXY", "http://user:hunter2@[::1"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem"),
    ],
)
def test_an_environment_that_cannot_be_used_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsRefused) as refused:
        Endpoint("http://127.0.0.1:1", Secret("key"), "m", proxies=True)
    assert "hunter2" not in str(refused.value)
    assert name in f"{refused.value} {refused.value.hint}"


def test_a_key_that_is_not_ascii_is_named() -> None:
    with pytest.raises(SettingsRefused, match="API key"):
        Endpoint("http://127.0.0.1:1", Secret("schlüssel"), "m")


def test_a_proxy_without_a_valid_port_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:99999")
    with Endpoint("http://192.0.2.1", Secret("key"), "m", proxies=True) as endpoint, pytest.raises(EndpointError):
        endpoint.served()


def test_one_odd_answer_is_one_failed_check() -> None:
    class Odd(Handler):
        def _message(self, asked: dict[str, Any], text: str) -> dict[str, Any]:
            return {"role": "assistant", "content": [{"type": "text", "text": text}]}

    with (
        listening(type("OddHandler", (Odd,), {"engine": Engine()})) as url,
        Endpoint(url, Secret(KEY), MODEL) as endpoint,
    ):
        report = run_checks(unknown_endpoint(endpoint, load_catalog(), None), ("live", "models", "text", "stream"))
    assert {check.name: check.status for check in report.checks} == {
        "live": "passed",
        "models": "passed",
        "text": "failed",
        "stream": "passed",
    }
    assert "choices.0.message.content" in next(check.got for check in report.checks if check.name == "text")

"""Endpoints with one thing wrong, and whether `test` names it: a scripted server, real HTTP and real proxies."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import ClassVar

import pytest

from dflash_deploy.catalog.models import Questions
from dflash_deploy.checks.answers import PAUSE
from dflash_deploy.checks.check import Baseline, CheckResult, EndpointUnderTest
from dflash_deploy.checks.run import CHECKS, run_checks
from dflash_deploy.client import endpoint as api
from dflash_deploy.client.answers import Completion
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.redact import Secret
from dflash_deploy.serve.engines import ENGINES
from tests.support import proxies
from tests.support.openai_server import KEY, MODEL, Engine, serving
from tests.support.proxies import Proxy, before


def beside(plain: Endpoint) -> Baseline:
    """An endpoint that runs anyway."""
    return lambda: nullcontext(plain)


def under_test(url: str) -> EndpointUnderTest:
    """What a deployment would know of the scripted server."""
    return EndpointUnderTest(
        Endpoint(url, Secret(KEY), MODEL, timeout=20),
        Questions(),
        engine=ENGINES["vllm"],
        locked=True,
        drafting=True,
        sees=True,
        thinks=True,
        calls_tools=True,
        weights="/models/target",
        max_model_len=2048,
        max_num_seqs=4,
        max_body_mib=1,
        trained_context=1000,
    )


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def run(of: EndpointUnderTest, *names: str) -> dict[str, CheckResult]:
    with of.endpoint:
        return {check.name: check for check in run_checks(of, names).checks}


def test_a_sound_endpoint_passes_every_check(opened: ExitStack) -> None:
    url = opened.enter_context(serving(Engine()))
    with Endpoint(opened.enter_context(serving(Engine(accepted=None))), Secret(KEY), MODEL) as plain:
        checks = run(replace(under_test(url), baseline=beside(plain)))
    assert {name: check.got for name, check in checks.items() if check.status != "passed"} == {}
    assert set(checks) == set(CHECKS)


def test_a_proxy_that_changes_nothing_is_no_trap(opened: ExitStack) -> None:
    url = opened.enter_context(before(opened.enter_context(serving(Engine())), Proxy))
    checks = run(under_test(url))
    assert {name: check.got for name, check in checks.items() if check.status != "passed"} == {}


def test_pauses_of_a_busy_machine_are_no_proxy_that_buffers(opened: ExitStack) -> None:
    url = opened.enter_context(before(opened.enter_context(serving(Engine())), proxies.Pauses))
    result = run(under_test(url), "stream")["stream"]
    assert result.status == "passed"
    assert result.seconds > proxies.Pauses.left * PAUSE


@pytest.mark.parametrize(
    ("kind", "check", "named"),
    [
        (proxies.AnswersEverything, "live", "accepts every path"),
        (proxies.DropsPictures, "vision", "dropped before the engine"),
        (proxies.DropsPictures, "digit", "dropped before the engine"),
        (proxies.DropsPictures, "shape", "dropped before the engine"),
        (proxies.DropsHistory, "turns", "earlier turns do not reach"),
        (proxies.DropsSchemas, "json", "ignores response_format"),
        (proxies.DropsTools, "tools", "no call; text"),
        (proxies.DropsUsage, "stream", "no usage"),
        (proxies.Buffers, "stream", "all at once"),
        (proxies.Garbles, "stream", "unexpected answer"),
        (proxies.CutsStreams, "stream", "cut off before its end"),
        (proxies.NotAStream, "stream", "expected text/event-stream"),
        (proxies.CutsPrompts, "long", "cut"),
        (proxies.CutsPrompts, "size", "must be refused"),
        (proxies.CapsAnswers, "whole", "cut short"),
        (proxies.RewritesNames, "name", "rewrites the model name"),
        (proxies.AddsTheKey, "auth", "GET /v1/models 200"),
        (proxies.AddsTheKey, "auth", "GET /v1/models with a wrong key 200"),
        (proxies.AddsTheKey, "auth", "HEAD /pause"),
        (proxies.Caches, "text", "a cache answers"),
        (proxies.CachesAnew, "metrics", "0 counted"),
        (proxies.HidesMetrics, "metrics", "answered 404"),
        (proxies.HidesMetrics, "drafts", "answered 404"),
        (proxies.OtherMetrics, "metrics", "belong to another engine"),
        (proxies.OtherMetrics, "cancel", "belongs to another engine"),
        (proxies.OtherMetrics, "drafts", "reported no draft tokens"),
        (proxies.ProxysOwnMetrics, "metrics", "no counters of a supported engine"),
        (proxies.ReadsOn, "cancel", "continues for disconnected clients"),
        (proxies.TurnsAwayBursts, "burst", "busy"),
    ],
)
def test_a_proxy_in_between_is_named(kind: type[Proxy], check: str, named: str, opened: ExitStack) -> None:
    url = opened.enter_context(before(opened.enter_context(serving(Engine())), kind, KEY))
    # a cache answers what it has seen
    result = (run(under_test(url), check) if kind is not proxies.CachesAnew else _twice(url, check))[check]
    assert result.status == "failed"
    assert named in f"{result.got} {result.hint}"


def _twice(url: str, check: str) -> dict[str, CheckResult]:
    run(under_test(url), check)
    return run(under_test(url), check)


@pytest.mark.parametrize(
    ("engine", "check", "named"),
    [
        (Engine(model="another"), "models", "another"),
        (Engine(root="/models/another"), "models", "scripted is /models/another"),
        (Engine(context=1024), "models", "accepts 1024 tokens"),
        (Engine(accepted=None), "drafts", "speculative decoding is off"),
        (Engine(accepted=(0.02, 0.01, 0.01)), "drafts", "broken"),
        (Engine(accepted=(0.02, 0.01, 0.01)), "drafts", "not for this target"),
        (Engine(accepted=(0.25, 0.2, 0.1)), "drafts", "rejected from the first position"),
        (Engine(thinks_apart=False), "reasoning", "REASONING_PARSER does not match"),
        (Engine(body_limit=2**22), "size", "1 byte"),
        (Engine(forgets=True), "lossless", "not the target's own: `Count from 1 to 40"),
        (Engine(forgets=True), "lossless", "at token 4 the target prefers `4, ` by 9.0"),
        (Engine(forgets=True), "lossless", "DFLASH_DRAFTER=off"),
        (Engine(forgets_above=3), "mixed", "at token 4 the target prefers"),
        (Engine(forgets_above=3), "mixed", "lower MAX_NUM_SEQS"),
    ],
)
def test_an_engine_that_is_not_as_the_deployment_says_is_named(
    engine: Engine, check: str, named: str, opened: ExitStack
) -> None:
    result = run(under_test(opened.enter_context(serving(engine))), check)[check]
    assert result.status == "failed"
    assert named in f"{result.asked} {result.got} {result.hint}"


def test_output_that_the_drafter_changes_is_named(opened: ExitStack) -> None:
    url = opened.enter_context(serving(Engine(program="def fibonacci(n): return 1 # it never ends " * 10)))
    with Endpoint(opened.enter_context(serving(Engine(accepted=None))), Secret(KEY), MODEL) as plain:
        result = run(replace(under_test(url), baseline=beside(plain)), "lossless")["lossless"]
    assert result.status == "failed"
    assert "is `1 ` here, `n ` without drafts" in result.got


def test_the_answers_known_by_heart_find_it_where_an_engine_does_not_read_again(opened: ExitStack) -> None:
    """An unknown engine is not known to; a proxy may pass on chats only."""
    for forgets, status in ((True, "failed"), (False, "passed")):
        url = opened.enter_context(serving(Engine(forgets=forgets)))
        behind = opened.enter_context(before(url, proxies.ChatsOnly))
        for tested in (replace(under_test(url), engine=None), under_test(behind)):
            result = run(tested, "lossless")["lossless"]
            assert result.status == status, result.got
            assert "`test --baseline` compares" in f"{result.got} {result.hint}"
            if forgets:
                assert "`Count from 1 to 40. Write every number, `: 1, 2, 3, 3, 3," in result.got


def test_a_baseline_that_drafts_too_shows_nothing(opened: ExitStack) -> None:
    url, other = (opened.enter_context(serving(Engine())) for _ in range(2))
    with Endpoint(other, Secret(KEY), MODEL) as drafting:
        result = run(replace(under_test(url), baseline=beside(drafting)), "lossless")["lossless"]
    assert result.status == "skipped"
    assert "uses a drafter too" in result.got


def test_what_cannot_be_judged_is_skipped_with_its_reason(opened: ExitStack) -> None:
    url = opened.enter_context(serving(Engine()))
    narrow = Questions(count="Count from 1 to 50.", limits="it knows its corpus and nothing else")
    knows_little = replace(
        under_test(url), questions=narrow, sees=False, drafting=False, thinks=False, calls_tools=False
    )
    checks = run(knows_little)
    skipped = {name: check.got for name, check in checks.items() if check.status == "skipped"}
    assert set(skipped) == {"vision", "digit", "shape", "tools", "reasoning", "drafts", "lossless", "mixed"}
    assert "corpus" in skipped["digit"]
    assert "does not accept images" in skipped["vision"]
    assert "TOOL_CALL_PARSER" in skipped["tools"]
    assert "the text is not checked" in checks["long"].got


def test_the_other_engines_answer_every_name(opened: ExitStack) -> None:
    url = opened.enter_context(serving(Engine()))
    assert run(replace(under_test(url), engine=ENGINES["sglang"]), "name")["name"].status == "skipped"


class Hangs(Proxy):
    """Takes a question for an answer in pieces, and says nothing any more."""

    def itself(self, body: bytes) -> bool:
        if b'"stream"' in body:
            threading.Event().wait(60)
        return False


class Impatient(Endpoint):
    """Gives up a stream at once, and waits for anything else."""

    def stream(self, content: str, *, max_tokens: int, **options: object) -> Completion:
        with Endpoint(self.url, Secret(KEY), MODEL, timeout=0.5) as other:
            return other.stream(content, max_tokens=max_tokens, **options)


def test_after_an_answer_that_does_not_come_nothing_more_is_asked(opened: ExitStack) -> None:
    url = opened.enter_context(before(opened.enter_context(serving(Engine())), Hangs))
    impatient = replace(under_test(url), endpoint=Impatient(url, Secret(KEY), MODEL))
    checks = run(impatient, "text", "stream", "whole", "vision")
    assert {name: check.status for name, check in checks.items()} == {
        "text": "passed",
        "stream": "failed",
        "whole": "failed",
        "vision": "failed",
    }
    assert checks["vision"].got == f"not run: {checks['stream'].got}"
    assert "timed out" in checks["stream"].got


class SlowToStrangers(Proxy):
    """Does not turn somebody away before it was asked whether it is alive."""

    asked: ClassVar[threading.Event]

    def itself(self, body: bytes) -> bool:
        if self.path == "/health":
            self.asked.set()
        elif "Authorization" not in self.headers:
            self.asked.wait(60)
        return False


def test_one_slow_refusal_is_no_silence(opened: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    SlowToStrangers.asked = threading.Event()
    monkeypatch.setattr(api, "CONNECT_TIMEOUT", 0.5)
    alive = Endpoint.alive

    def with_patience(endpoint: Endpoint) -> bool:
        monkeypatch.setattr(api, "CONNECT_TIMEOUT", 60.0)
        return alive(endpoint)

    monkeypatch.setattr(Endpoint, "alive", with_patience)
    url = opened.enter_context(before(opened.enter_context(serving(Engine())), SlowToStrangers))
    checks = run(under_test(url), "auth", "text")
    assert {name: check.status for name, check in checks.items()} == {"auth": "failed", "text": "passed"}


def test_without_anything_listening_every_check_fails() -> None:
    checks = run(under_test("http://127.0.0.1:9"))
    # those that need a second endpoint are not run at all
    assert {check.status for check in checks.values()} == {"failed"}

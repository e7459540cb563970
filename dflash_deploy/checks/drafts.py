"""Checks of speculative decoding: counters and acceptance."""

from __future__ import annotations

from collections.abc import Callable

from dflash_deploy.checks.acceptance import grade_acceptance
from dflash_deploy.checks.check import CheckOutcome, CheckSkipped, EndpointUnderTest, check
from dflash_deploy.checks.pictures import COLOURS
from dflash_deploy.client.answers import Completion
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.images import plain_png
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines.counters import SpecCounters
from dflash_deploy.serve.settings import Settings

LONG_ANSWER = 256

# The request whose drafts are graded. Short answers end before all draft tokens are used, and counting is too easy.
GRADED = "long answer"


@check("metrics")
def metrics_count(tested: EndpointUnderTest) -> CheckOutcome:
    """/metrics belongs to this engine: it counts the tokens of a new answer."""
    before = tested.endpoint.metrics()
    if before.engine is None:
        hint = "check that this is the engine's port; supported engines: vLLM, SGLang and llama.cpp"
        return CheckOutcome(False, "GET /metrics", "no counters of a supported engine", hint)
    answer = tested.endpoint.chat(tested.questions.text.ask, max_tokens=tested.room)
    made = tested.endpoint.metrics().generated_tokens - before.generated_tokens
    if made < answer.completion_tokens:
        # it may be counted after the client has it, on a busy machine by seconds, but before the next one is answered
        tested.endpoint.chat(tested.questions.text.ask, max_tokens=tested.room)
        made = tested.endpoint.metrics().generated_tokens - before.generated_tokens
    got = f"{before.engine}: {answer.completion_tokens} tokens answered, {made} counted"
    own = tested.engine is None or tested.engine.metrics == ENGINES[before.engine].metrics
    right = made >= answer.completion_tokens and own
    return CheckOutcome(
        right, "/metrics around an answer", got, "the counters belong to another engine, or a cache answered"
    )


@check("drafts")
def drafts(tested: EndpointUnderTest) -> CheckOutcome:
    """Draft tokens are proposed and accepted, for each kind of request."""
    asked = "the engine's counters around a long answer"
    if tested.drafting is False:
        raise CheckSkipped(asked, f"{Settings.dflash_drafter}=off: the engine runs without speculative decoding")
    drafted = {name: _drafts_of(tested.endpoint, request) for name, request in _requests(tested).items()}
    if tested.drafting is None and not any(one.drafts for one in drafted.values()):
        raise CheckSkipped(asked, "the engine counted no draft tokens; whether it has a drafter is unknown")
    lengths = {name: length for name, one in drafted.items() if (length := one.acceptance_length)}
    grade = grade_acceptance(drafted[GRADED], tested.acceptance)
    others = [f"{name} {length:.2f}" for name, length in lengths.items() if name != GRADED]
    got = "; ".join(filter(None, (f"{grade.grade}: {grade.says}", ", ".join(others))))
    figures = {f"acceptance_length of {name}": round(length, 3) for name, length in lengths.items()}
    if GRADED in lengths:
        figures["acceptance_length"] = lengths[GRADED]
    return CheckOutcome(grade.grade in {"good", "weak"}, asked, got, grade.hint, figures)


def _requests(tested: EndpointUnderTest) -> dict[str, Callable[[], Completion]]:
    """Return the requests whose drafts are measured, by kind."""
    endpoint, questions = tested.endpoint, tested.questions
    # many drafters are trained only on answers with thinking (z-lab/dflash#60)
    thinking = {"chat_template_kwargs": {"enable_thinking": True}} if tested.drafter_thinks else {}
    requests: dict[str, Callable[[], Completion]] = {
        GRADED: lambda: endpoint.chat(questions.long, max_tokens=LONG_ANSWER, **thinking),
        "short answer": lambda: endpoint.chat(questions.text.ask, max_tokens=tested.room),
        "counting": lambda: endpoint.chat(questions.count, max_tokens=LONG_ANSWER),
    }
    if thinking:
        requests["without thinking"] = lambda: endpoint.chat(questions.long, max_tokens=LONG_ANSWER)
    if tested.sees:
        red = plain_png(COLOURS["red"], 224, 224)
        requests["image"] = lambda: endpoint.ask_image(red, questions.vision, max_tokens=tested.room)
    return requests


def _drafts_of(endpoint: Endpoint, request: Callable[[], Completion]) -> SpecCounters:
    """Return the drafts of one request, from /metrics or, for older llama.cpp without these counters, the answer."""
    before = endpoint.counters()
    answer = request()
    counted = endpoint.counters() - before
    return counted if counted.drafts or answer.drafted is None else answer.drafted

"""Checks of speculative decoding: counters, acceptance, and whether the output equals that of the target."""

from __future__ import annotations

import time
from collections.abc import Callable

from dflash_deploy.checks.acceptance import grade_acceptance
from dflash_deploy.checks.outcome import CheckSkipped, Outcome
from dflash_deploy.checks.pictures import COLOURS
from dflash_deploy.checks.under_test import EndpointUnderTest
from dflash_deploy.client import Completion, Endpoint, SpecCounters, plain_png
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.settings import Settings

SETTLING = 2.0
"""Seconds within which an engine's counters must include an answer."""

LONG_ANSWER = 256

NEAR_TIE = 0.1
"""Largest difference of the two best log-probabilities at which a token may differ: 16-bit sums depend on order."""


def counted(tested: EndpointUnderTest) -> Outcome:
    """/metrics belongs to this engine: it counts the tokens of a new answer."""
    before = tested.endpoint.metrics()
    if before.engine is None:
        hint = "check that this is the engine's port; supported engines: vLLM, SGLang and llama.cpp"
        return Outcome(False, "GET /metrics", "no counters of a supported engine", hint)
    answer = tested.endpoint.chat(tested.questions.text.ask, max_tokens=tested.room)
    after, started = tested.endpoint.metrics(), time.monotonic()
    while after.generated_tokens - before.generated_tokens < answer.completion_tokens:
        if time.monotonic() - started > SETTLING:
            break
        time.sleep(0.05)
        after = tested.endpoint.metrics()
    made = after.generated_tokens - before.generated_tokens
    got = f"{before.engine}: {answer.completion_tokens} tokens answered, {made} counted"
    own = tested.engine is None or tested.engine.metrics == ENGINES[before.engine].metrics
    right = made >= answer.completion_tokens and own
    return Outcome(
        right, "/metrics around an answer", got, "the counters belong to another engine, or a cache answered"
    )


def drafts(tested: EndpointUnderTest) -> Outcome:
    """Draft tokens are proposed and accepted, for each kind of request."""
    asked = "the engine's counters around a long answer"
    if tested.drafting is False:
        raise CheckSkipped(asked, f"{Settings.dflash_drafter}=off: the engine runs without speculative decoding")
    # many drafters are trained only on answers with thinking (z-lab/dflash#60)
    trained = {"chat_template_kwargs": {"enable_thinking": True}} if tested.drafter_thinks else {}
    works: dict[str, Callable[[], Completion]] = {
        "long answer": lambda: tested.endpoint.chat(tested.questions.long, max_tokens=LONG_ANSWER, **trained),
        "short answer": lambda: tested.endpoint.chat(tested.questions.text.ask, max_tokens=tested.room),
        "counting": lambda: tested.endpoint.chat(tested.questions.count, max_tokens=LONG_ANSWER),
    }
    if trained:
        works["without thinking"] = lambda: tested.endpoint.chat(tested.questions.long, max_tokens=LONG_ANSWER)
    if tested.sees:
        red = plain_png(COLOURS["red"], 224, 224)
        works["image"] = lambda: tested.endpoint.ask_image(red, tested.questions.vision, max_tokens=tested.room)
    gained = {name: _gained(tested.endpoint, work) for name, work in works.items()}
    if tested.drafting is None and not any(one.drafts for one in gained.values()):
        raise CheckSkipped(asked, "the engine counted no draft tokens; whether it has a drafter is unknown")
    # graded on the long answer: short answers end before all draft tokens are used, and counting is too easy
    verdict = grade_acceptance(gained["long answer"], tested.acceptance)
    lengths = {name: one.acceptance_length for name, one in gained.items()}
    others = ", ".join(f"{name} {length:.2f}" for name, length in list(lengths.items())[1:] if length)
    got = f"{verdict.grade}: {verdict.says}{others and '; '}{others}"
    figures = {f"acceptance_length of {name}": round(length, 3) for name, length in lengths.items() if length}
    if length := lengths["long answer"]:
        figures["acceptance_length"] = length
    return Outcome(verdict.grade in {"good", "weak"}, asked, got, verdict.hint, figures)


def _gained(endpoint: Endpoint, work: Callable[[], Completion]) -> SpecCounters:
    """Return the drafts of one request, from /metrics or, for older llama.cpp without these counters, the answer."""
    before = endpoint.counters()
    answer = work()
    gained = endpoint.counters() - before
    return gained if gained.drafts or answer.drafted is None else answer.drafted


def lossless(tested: EndpointUnderTest) -> Outcome:
    """With greedy decoding, the answers equal those of an endpoint without the drafter, except for near ties."""
    asked = "the same questions here and at the baseline"
    if tested.baseline is None:
        raise CheckSkipped(asked, "no baseline: name an endpoint without a drafter with --baseline-url")
    if tested.baseline.counters().drafts:
        raise CheckSkipped(asked, f"the baseline uses a drafter too: start it with {Settings.dflash_drafter}=off")
    questions = (tested.questions.text.ask, tested.questions.count, tested.questions.long)
    differing, tokens = list[str](), 0
    for question in questions:
        here, there = (_steps(endpoint, question) for endpoint in (tested.endpoint, tested.baseline))
        tokens += len(there)
        at = next((n for n, (a, b) in enumerate(zip(here, there, strict=False)) if a[0] != b[0]), None)
        if at is None and len(here) != len(there):
            at = min(len(here), len(there)) - 1
        if at is not None and min(here[at][1], there[at][1]) > NEAR_TIE:
            differing.append(f"{question[:40]}: token {at} is {here[at][0]!r} here, {there[at][0]!r} there")
    got = "; ".join(differing) or f"{len(questions)} answers, {tokens} tokens, the same"
    return Outcome(not differing, asked, got, "the drafter changes the output: the targets differ, or this is a bug")


def _steps(endpoint: Endpoint, question: str) -> list[tuple[str, float]]:
    """Return each token, and the difference between its log-probability and the second best."""
    answer = endpoint.chat(question, max_tokens=LONG_ANSWER, logprobs=True, top_logprobs=2)
    steps = []
    for entry in answer.logprobs["content"]:
        best = sorted((top["logprob"] for top in entry["top_logprobs"]), reverse=True)
        steps.append((str(entry["token"]), best[0] - best[1]))
    return steps

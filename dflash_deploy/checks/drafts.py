"""Checks of speculative decoding: is it counted, are drafts made and accepted, is the output the target's own?"""

from __future__ import annotations

import time
from collections.abc import Callable

from dflash_deploy.checks.acceptance import grade_acceptance
from dflash_deploy.checks.outcome import CheckSkipped, Outcome
from dflash_deploy.checks.pictures import COLOURS
from dflash_deploy.checks.under_test import EndpointUnderTest
from dflash_deploy.client import Completion, Endpoint, SpecCounters, plain_png
from dflash_deploy.serve.engines import ENGINES

SETTLING = 2.0
"""Seconds within which an engine's counters must show what it has answered."""

LONG_ANSWER = 256

NEAR_TIE = 0.1
"""Most that the two best log-probabilities may lie apart where a token differs: 16-bit sums depend on order."""


def counted(tested: EndpointUnderTest) -> Outcome:
    """/metrics is this engine's own: it counts the tokens of an answer that was just given."""
    before = tested.endpoint.metrics()
    if before.engine is None:
        hint = "is this the engine's own port? vLLM, SGLang and llama.cpp are known"
        return Outcome(False, "GET /metrics", "no counters of an engine that is known here", hint)
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
    return Outcome(right, "/metrics around an answer", got, "the counters are of another engine, or a cache answered")


def drafts(tested: EndpointUnderTest) -> Outcome:
    """Drafts are made and accepted, on each kind of work."""
    asked = "the engine's counters around a long answer"
    if tested.drafting is False:
        raise CheckSkipped(asked, "DFLASH_DRAFTER is off: plain decoding")
    # a drafter knows the kind of answers that it was trained on, those with thinking often alone (z-lab/dflash#60)
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
        raise CheckSkipped(asked, "no draft was counted, and nobody said that there is a drafter")
    # where an answer ends after a few tokens nothing is accepted past its end, and counting is easier than work is
    verdict = grade_acceptance(gained["long answer"], tested.acceptance)
    lengths = {name: one.acceptance_length for name, one in gained.items()}
    others = ", ".join(f"{name} {length:.2f}" for name, length in list(lengths.items())[1:] if length)
    got = f"{verdict.grade}: {verdict.says}{others and '; '}{others}"
    figures = {f"acceptance_length of {name}": round(length, 3) for name, length in lengths.items() if length}
    if length := lengths["long answer"]:
        figures["acceptance_length"] = length
    return Outcome(verdict.grade in {"good", "weak"}, asked, got, verdict.hint, figures)


def _gained(endpoint: Endpoint, work: Callable[[], Completion]) -> SpecCounters:
    """The drafts of one piece of work; as the answer tells them where /metrics has none, as in early llama.cpp."""
    before = endpoint.counters()
    answer = work()
    gained = endpoint.counters() - before
    return gained if gained.drafts or answer.drafted is None else answer.drafted


def lossless(tested: EndpointUnderTest) -> Outcome:
    """Decoded greedily, the answers are those of an endpoint without the drafter, but for ties."""
    asked = "the same questions here and at the baseline"
    if tested.baseline is None:
        raise CheckSkipped(asked, "no endpoint to compare with: --baseline-url names one without the drafter")
    if tested.baseline.counters().drafts:
        raise CheckSkipped(asked, "the baseline drafts too: start it with DFLASH_DRAFTER=off")
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
    return Outcome(not differing, asked, got, "the drafter changes the output: not the same target, or a defect")


def _steps(endpoint: Endpoint, question: str) -> list[tuple[str, float]]:
    """Each token, and how far its log-probability lies ahead of the second best."""
    answer = endpoint.chat(question, max_tokens=LONG_ANSWER, logprobs=True, top_logprobs=2)
    steps = []
    for entry in answer.logprobs["content"]:
        best = sorted((top["logprob"] for top in entry["top_logprobs"]), reverse=True)
        steps.append((str(entry["token"]), best[0] - best[1]))
    return steps

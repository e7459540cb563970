"""Checks of what is answered. None takes a 200 for an answer."""

from __future__ import annotations

import re
import secrets

from dflash_deploy.checks.outcome import Outcome
from dflash_deploy.checks.under_test import EndpointUnderTest
from dflash_deploy.client import Completion

LAST_NUMBER = 50
LONG_ANSWER = 256

MIN_SPREAD = 0.1
"""The share of a stream's time within which all its pieces come where something on the way collects them."""

GREETING = (
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hello! How can I help you?"},
)


def text(tested: EndpointUnderTest) -> Outcome:
    """A question with one right answer, asked twice: the second answer is one of its own, not a copy."""
    question = tested.questions.text
    first, second = (tested.endpoint.chat(question.ask, max_tokens=tested.room) for _ in range(2))
    for answer in (first, second):
        if question.expect.lower() not in answer.text.lower():
            hint = f"the answer must say {question.expect}: are these the target's weights?"
            return Outcome(False, question.ask, answer.text, hint)
    if first.id and first.id == second.id:
        got = f"asked twice, answered twice with the id {first.id}"
        return Outcome(False, question.ask, got, "a cache answers instead of the engine: switch it off, or ask past it")
    return Outcome(True, question.ask, first.text)


def turns(tested: EndpointUnderTest) -> Outcome:
    """What was said before reaches the model: an earlier turn makes the prompt longer, and its word comes back."""
    code, question = f"K{secrets.randbelow(9000) + 1000}", tested.questions.text
    alone = tested.endpoint.chat(question.ask, max_tokens=tested.room)
    if tested.questions.limits:
        history, ask, expect = list(GREETING), question.ask, question.expect
    else:
        told = {"role": "user", "content": f"My locker has the code {code}."}
        history = [told, {"role": "assistant", "content": "Noted."}]
        ask, expect = "What code does my locker have? Answer with the code alone.", code
    messages = [*history, {"role": "user", "content": ask}]
    answer = tested.endpoint.chat(ask, max_tokens=tested.room, messages=messages)
    asked = f"after {len(history)} messages: {ask}"
    got = f"{answer.text.strip()} ({answer.prompt_tokens} prompt tokens; one question alone {alone.prompt_tokens})"
    right = expect.lower() in answer.text.lower() and answer.prompt_tokens > alone.prompt_tokens
    return Outcome(right, asked, got, "earlier turns do not reach the model: what stands between client and engine?")


def streaming(tested: EndpointUnderTest) -> Outcome:
    """A long answer comes in pieces as they are made, with its usage and a proper end."""
    answer = tested.endpoint.stream(tested.questions.long, max_tokens=_room_for_long(tested))
    first, last = answer.first_token_seconds or 0.0, answer.last_token_seconds or 0.0
    got = (
        f"{answer.completion_tokens} tokens in {answer.chunks} pieces, first after {first * 1000:.0f} ms, "
        f"{answer.tokens_per_second:.1f} tokens/s, finish {answer.finish_reason or 'missing'}"
    )
    fault, hint = _fault_of_stream(answer, last - first)
    rate = {"tokens_per_second": answer.tokens_per_second}
    return Outcome(not fault, tested.questions.long, f"{got}{fault and '; '}{fault}", hint, {} if fault else rate)


def _fault_of_stream(answer: Completion, spread: float) -> tuple[str, str]:
    """What is wrong with a stream whose pieces came within `spread` seconds, and what to do; empty where nothing is."""
    if not answer.completion_tokens:
        return "no usage", "stream_options.include_usage is lost on the way, or the engine does not know it"
    # before the pace is judged: what was cut off is short
    if answer.finish_reason not in {"stop", "length"} or not answer.ended:
        return "cut off before its end", "look at time limits of proxies, and at `dflash-deploy logs`"
    if answer.chunks < 2 or spread < MIN_SPREAD * answer.seconds:
        return "all at once", "something between client and engine collects the stream: proxy_buffering off in nginx"
    return "", ""


def whole(tested: EndpointUnderTest) -> Outcome:
    """An answer comes whole: every number up to 50, in order, whatever stands between."""
    answer = tested.endpoint.chat(tested.questions.count, max_tokens=_room_for_long(tested))
    numbers = [int(found) for found in re.findall(r"\d+", answer.text)]
    last = numbers[-1] if numbers else "missing"
    got = (
        f"{len(numbers)} numbers, the last one {last}, {answer.completion_tokens} tokens, finish {answer.finish_reason}"
    )
    right = numbers == list(range(1, LAST_NUMBER + 1)) and answer.finish_reason == "stop"
    hint = "answers are cut short or changed: a proxy with a limit, other weights, or a sampler of its own"
    return Outcome(right, tested.questions.count, got, hint)


def _room_for_long(tested: EndpointUnderTest) -> int:
    return tested.within(max(LONG_ANSWER, tested.room) if tested.must_think else LONG_ANSWER)

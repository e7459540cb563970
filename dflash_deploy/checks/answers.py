"""Checks of the content of answers. A status of 200 is not enough."""

from __future__ import annotations

import re
import secrets
import time

from dflash_deploy.checks.check import CheckOutcome, EndpointUnderTest, check
from dflash_deploy.client.answers import Completion

LAST_NUMBER = 50
LONG_ANSWER = 256

MIN_SPREAD = 0.1
"""Share of a stream's time: if all chunks arrive within it, a proxy buffers the stream."""

STREAMS, STREAMED = 8, 20.0
"""Streams that arrive at once, and their seconds, before a proxy is blamed: at least that number, or that time of two.

The first does not prove it: an engine in a container has a share of the processor of its own, and beside other work it
ends 200 tokens before a client gets its turn, several times in a row.
"""

PAUSE = 0.2
"""Seconds before a stream is asked for again."""

GREETING = (
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hello! How can I help you?"},
)


@check("text", quick=True)
def text(tested: EndpointUnderTest) -> CheckOutcome:
    """A question with one right answer, asked twice: the second answer must be a new one, not a cached copy."""
    question = tested.questions.text
    first, second = (tested.endpoint.chat(question.ask, max_tokens=tested.room) for _ in range(2))
    for answer in (first, second):
        if question.expect.lower() not in answer.text.lower():
            hint = f"the answer must contain `{question.expect}`: check the target's weights (`pull --verify`)"
            return CheckOutcome(False, question.ask, answer.text, hint, of_model=bool(answer.text.strip()))
    if first.id and first.id == second.id:
        got = f"both answers have the id {first.id}"
        return CheckOutcome(False, question.ask, got, "a cache answers in place of the engine: disable or bypass it")
    return CheckOutcome(True, question.ask, first.text)


@check("turns")
def turns(tested: EndpointUnderTest) -> CheckOutcome:
    """Earlier turns reach the model: they make the prompt longer, and the answer repeats a word of them."""
    code, question = f"K{secrets.randbelow(9000) + 1000}", tested.questions.text
    single = tested.endpoint.chat(question.ask, max_tokens=tested.room)
    if tested.questions.limits:
        history, ask, expect = list(GREETING), question.ask, question.expect
    else:
        fact = {"role": "user", "content": f"My locker has the code {code}."}
        history = [fact, {"role": "assistant", "content": "Noted."}]
        ask, expect = "What code does my locker have? Answer with only the code.", code
    messages = [*history, {"role": "user", "content": ask}]
    answer = tested.endpoint.chat(ask, max_tokens=tested.room, messages=messages)
    asked = f"after {len(history)} messages: {ask}"
    got = f"{answer.text.strip()} ({answer.prompt_tokens} prompt tokens; a single question {single.prompt_tokens})"
    longer = answer.prompt_tokens > single.prompt_tokens
    hint = "earlier turns do not reach the model: check proxies between client and engine"
    return CheckOutcome(longer and expect.lower() in answer.text.lower(), asked, got, hint, of_model=longer)


@check("stream")
def streaming(tested: EndpointUnderTest) -> CheckOutcome:
    """A long answer streams in chunks as tokens are generated, with its usage and a proper end."""
    answer = _spread_stream(tested)
    first = answer.first_token_seconds or 0.0
    got = (
        f"{answer.completion_tokens} tokens in {answer.chunks} chunks, first after {first * 1000:.0f} ms, "
        f"{answer.tokens_per_second:.1f} tokens/s, finish {answer.finish_reason or 'missing'}"
    )
    fault, hint = _fault_of_stream(answer)
    rate = {"tokens_per_second": answer.tokens_per_second}
    return CheckOutcome(not fault, tested.questions.long, f"{got}{fault and '; '}{fault}", hint, {} if fault else rate)


def _spread_stream(tested: EndpointUnderTest) -> Completion:
    """The first stream whose chunks arrive one after the other, else the last one that was asked for."""
    seconds = 0.0
    for asked in range(1, STREAMS + 1):
        answer = tested.endpoint.stream(tested.questions.long, max_tokens=_room_for_long(tested))
        seconds += answer.seconds
        if not _all_at_once(answer) or (asked > 1 and seconds > STREAMED):
            break
        time.sleep(PAUSE)
    return answer


def _all_at_once(answer: Completion) -> bool:
    # up to the end: what a proxy kept back arrives with it, however fast the tokens were generated
    spread = answer.seconds - (answer.first_token_seconds or 0.0)
    return answer.chunks < 2 or spread < MIN_SPREAD * answer.seconds


def _fault_of_stream(answer: Completion) -> tuple[str, str]:
    """Return the fault of a stream and a hint, empty if it is right."""
    if not answer.completion_tokens:
        return "no usage", "a proxy drops stream_options.include_usage, or the engine does not support it"
    # before the pace: a stream that was cut off is short
    if answer.finish_reason not in {"stop", "length"} or not answer.ended:
        return "cut off before its end", "check timeouts of proxies, and `dflash-deploy logs`"
    if _all_at_once(answer):
        return "all at once", "a proxy buffers the stream: set `proxy_buffering off` in nginx"
    return "", ""


@check("whole")
def whole(tested: EndpointUnderTest) -> CheckOutcome:
    """A long answer arrives complete: every number up to 50, in order."""
    answer = tested.endpoint.chat(tested.questions.count, max_tokens=_room_for_long(tested))
    numbers = [int(found) for found in re.findall(r"\d+", answer.text)]
    last = numbers[-1] if numbers else "missing"
    got = (
        f"{len(numbers)} numbers, the last one {last}, {answer.completion_tokens} tokens, finish {answer.finish_reason}"
    )
    right = numbers == list(range(1, LAST_NUMBER + 1)) and answer.finish_reason == "stop"
    hint = "answers are cut short or changed: a proxy with a limit, other weights, or other sampling parameters"
    ended = answer.finish_reason in {"stop", "length"}
    return CheckOutcome(right, tested.questions.count, got, hint, of_model=ended)


def _room_for_long(tested: EndpointUnderTest) -> int:
    return tested.within(max(LONG_ANSWER, tested.room) if tested.must_think else LONG_ANSWER)

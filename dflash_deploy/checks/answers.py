"""Checks of the content of answers. A status of 200 is not enough."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from dflash_deploy.checks.check import CheckOutcome, EndpointUnderTest, check
from dflash_deploy.checks.lengths import long_lines
from dflash_deploy.client.answers import Completion, EndpointError
from dflash_deploy.serve.settings import Settings

LAST_NUMBER = 50
LONG_ANSWER = 256

MIN_SPREAD = 0.1  # share of a stream's time: if all chunks arrive within it, a proxy buffers the stream

# Streams that arrive at once, and their seconds, before a proxy is blamed: at least that number, or that time of two.
#
# The first does not prove it: an engine in a container has a share of the processor of its own, and beside other work
# it ends 200 tokens before a client gets its turn, several times in a row.
STREAMS, STREAMED = 8, 20.0

PAUSE = 0.2  # seconds before a stream is asked for again

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
    """Two conversations at once: earlier turns reach the model, each sees only its own, and are not read again."""
    single = tested.endpoint.chat(tested.questions.text.ask, max_tokens=tested.room)
    mine, other = _conversation(tested, 0), _conversation(tested, 1)
    with ThreadPoolExecutor(2) as pool:
        answer, beside = pool.map(lambda one: _continued(tested, *one[:2]), (mine, other))
    history, ask, expect = mine
    asked = f"after {len(history)} messages: {ask}"
    got = f"{answer.text.strip()} ({answer.prompt_tokens} prompt tokens; a single question {single.prompt_tokens})"
    longer = answer.prompt_tokens > single.prompt_tokens
    if expect.lower() in beside.text.lower() or other[2].lower() in answer.text.lower():
        got = f"{got}; another conversation got {beside.text.strip()[:80]}"
        return CheckOutcome(False, asked, got, "one conversation sees another one: do not use this endpoint")
    if not longer or expect.lower() not in answer.text.lower():
        hint = "earlier turns do not reach the model: check proxies between client and engine"
        return CheckOutcome(False, asked, got, hint, of_model=longer)
    kept, said = _reused(tested)
    hint = f"the prefix cache keeps nothing: look for the release in docs/reference/engines.md, or set {_CACHING}=off"
    return CheckOutcome(kept, asked, f"{got}; {said}", hint)


_Messages = Sequence[Mapping[str, str]]

_CACHING = Settings.enable_prefix_caching

# Tokens of the first turn of a conversation whose second turn must not read them again, if they fit.
CONVERSATION = 4096

# Share of the first turn that may be read again: a cache has blocks, of up to 1,000 tokens with a hybrid target.
READ_AGAIN = 0.35


def _conversation(tested: EndpointUnderTest, number: int) -> tuple[_Messages, str, str]:
    """Return the history of a conversation, a question, and what only its answer contains."""
    if tested.questions.limits:
        known = tested.questions
        return GREETING, *((known.count, str(LAST_NUMBER)) if number else (known.text.ask, known.text.expect))
    code = f"K{secrets.randbelow(4000) + 1000 + 5000 * number}"
    fact = {"role": "user", "content": f"My locker has the code {code}."}
    ask = "What code does my locker have? Answer with only the code."
    return (fact, {"role": "assistant", "content": "Noted."}), ask, code


def _continued(tested: EndpointUnderTest, history: _Messages, ask: str) -> Completion:
    messages = [*history, {"role": "user", "content": ask}]
    return tested.endpoint.chat(ask, max_tokens=_room_for_long(tested), messages=messages)


def _reused(tested: EndpointUnderTest) -> tuple[bool, str]:
    """Return whether the second turn of a long conversation reads only what is new, and its tokens in words."""
    if tested.prefix_caching is False:
        return True, f"each turn reads its prompt again: {_CACHING}=off"
    lines, _ = long_lines(tested, CONVERSATION)
    ask = "\n".join([f"Conversation {secrets.token_hex(4)}.", *lines])
    first = tested.endpoint.chat(ask, max_tokens=8)
    history = ({"role": "user", "content": ask}, {"role": "assistant", "content": first.text or "Yes."})
    before = _cached(tested)
    second = _continued(tested, history, tested.questions.text.ask)
    cached, after = second.cached_tokens, _cached(tested)
    if cached is None and before is not None and after is not None:
        cached = after - before
    if cached is None:
        return True, "how much a second turn reads again is unknown: the engine reports no cached tokens"
    read, new = second.prompt_tokens - cached, second.prompt_tokens - first.prompt_tokens
    said = f"the second turn of {second.prompt_tokens} tokens, {new} of them new, read {read}"
    return not tested.prefix_caching or read <= new + READ_AGAIN * first.prompt_tokens, said


def _cached(tested: EndpointUnderTest) -> int | None:
    try:
        return tested.endpoint.metrics().cached_tokens
    except EndpointError:
        return None


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

"""Checks with more than one request: a burst beyond what is answered at once, and a client that leaves."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from dflash_deploy.checks.outcome import CheckSkipped, Outcome
from dflash_deploy.checks.under_test import FEW_STREAMS, EndpointUnderTest
from dflash_deploy.client import EndpointError

MORE = 2
"""Requests of the burst beyond those that the engine answers at the same time."""

ENDLESS = 4096
"""Tokens of the answer whose client leaves, where the context holds them."""

EARLY = 4
"""Pieces after which the client leaves."""

PATIENCE = 5.0
"""Seconds within which an engine must notice that its client left."""

INTERVAL = 0.05


def burst(tested: EndpointUnderTest) -> Outcome:
    """More requests at once than the engine takes: the others wait, and all get their own answer."""
    count = (tested.max_num_seqs or FEW_STREAMS) + MORE
    question = tested.questions.text

    def one(_: int) -> str:
        try:
            return tested.endpoint.chat(question.ask, max_tokens=tested.room).text
        except EndpointError as problem:
            return str(problem)

    started = time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(one, range(count)))
    wrong = [answer for answer in answers if question.expect.lower() not in answer.lower()]
    asked = f"{count} times at once: {question.ask}"
    got = f"{count - len(wrong)} of {count} right after {time.monotonic() - started:.1f} s"
    if wrong:
        got += f"; one said: {wrong[0].strip()[:120]}"
    return Outcome(not wrong, asked, got, "requests that wait must be answered too: look at `dflash-deploy logs`")


def cancelled(tested: EndpointUnderTest) -> Outcome:
    """The engine stops working for a client that left in the middle of a long answer."""
    endpoint = tested.endpoint
    limit = tested.max_model_len or next((one.max_model_len for one in endpoint.served()), None) or ENDLESS
    tokens = max(min(ENDLESS, limit - 256), 256)
    asked = f"an answer of {tokens} tokens, left after {EARLY} pieces"
    before = endpoint.metrics()
    if before.engine is None:
        raise CheckSkipped(
            asked, "/metrics is of no engine that is known here: whether the slot is free cannot be seen"
        )
    during = _leave(tested, tokens)
    left, after = time.monotonic(), endpoint.metrics()
    while after.running > before.running and time.monotonic() - left < PATIENCE:
        time.sleep(INTERVAL)
        after = endpoint.metrics()
    waited = time.monotonic() - left
    made = after.generated_tokens - before.generated_tokens
    got = f"{during} at work while it ran, {after.running} after {waited:.1f} s, {made} tokens made"
    if during <= before.running:
        return Outcome(False, asked, got, "/metrics did not see the request: it is of another engine")
    # SGLang counts tokens at the end of a request; a count that was reached means that it was never cut off
    right = after.running <= before.running and made < tokens
    return Outcome(right, asked, got, "the engine goes on for clients that left: a proxy keeps their connections open")


def _leave(tested: EndpointUnderTest, tokens: int) -> int:
    """Begin a stream, leave it early, and return how many requests were at work meanwhile."""
    body = {
        "model": tested.endpoint.model,
        "messages": [{"role": "user", "content": tested.questions.long}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    with tested.endpoint.events(body) as events:
        for number, _ in enumerate(events):
            if number >= EARLY:
                return tested.endpoint.metrics().running
    raise EndpointError(f"the stream ended after fewer than {EARLY} pieces")

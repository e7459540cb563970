"""Checks with several requests: a burst beyond max_num_seqs, and a client that disconnects."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from dflash_deploy.checks.check import check
from dflash_deploy.checks.outcome import CheckOutcome, CheckSkipped
from dflash_deploy.checks.under_test import DEFAULT_MAX_NUM_SEQS, EndpointUnderTest
from dflash_deploy.client import EndpointError

MORE = 2
"""Requests of the burst beyond max_num_seqs."""

ENDLESS = 4096
"""Tokens of the answer whose client disconnects, if the context is long enough."""

EARLY = 4
"""Chunks after which the client disconnects."""

PATIENCE = 5.0
"""Seconds within which the engine must notice that the client disconnected."""

INTERVAL = 0.05


@check("burst")
def burst(tested: EndpointUnderTest) -> CheckOutcome:
    """With more requests than max_num_seqs, the others wait, and each gets the right answer."""
    count = (tested.max_num_seqs or DEFAULT_MAX_NUM_SEQS) + MORE
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
    return CheckOutcome(not wrong, asked, got, "waiting requests must be answered too: read `dflash-deploy logs`")


@check("cancel")
def cancelled(tested: EndpointUnderTest) -> CheckOutcome:
    """The engine stops generating when the client disconnects during a long answer."""
    endpoint = tested.endpoint
    limit = tested.max_model_len or next((one.max_model_len for one in endpoint.served()), None) or ENDLESS
    tokens = max(min(ENDLESS, limit - 256), 256)
    asked = f"an answer of {tokens} tokens, disconnected after {EARLY} chunks"
    before = endpoint.metrics()
    if before.engine is None:
        raise CheckSkipped(asked, "/metrics has no counters of a supported engine: running requests are unknown")
    during = _leave(tested, tokens)
    left, after = time.monotonic(), endpoint.metrics()
    while after.running > before.running and time.monotonic() - left < PATIENCE:
        time.sleep(INTERVAL)
        after = endpoint.metrics()
    waited = time.monotonic() - left
    made = after.generated_tokens - before.generated_tokens
    got = f"running: {during} during the stream, {after.running} after {waited:.1f} s; {made} tokens generated"
    if during <= before.running:
        return CheckOutcome(False, asked, got, "/metrics does not show the request: it belongs to another engine")
    # SGLang counts tokens at the end of a request; the full count means that the request was never cancelled
    right = after.running <= before.running and made < tokens
    return CheckOutcome(
        right, asked, got, "the engine continues for disconnected clients: a proxy keeps their connections open"
    )


def _leave(tested: EndpointUnderTest, tokens: int) -> int:
    """Begin a stream, disconnect early, and return how many requests were running meanwhile."""
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
    raise EndpointError(f"the stream ended after fewer than {EARLY} chunks")

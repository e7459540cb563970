"""Checks with several requests: a burst beyond max_num_seqs, and a client that disconnects."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dflash_deploy.checks.check import DEFAULT_MAX_NUM_SEQS, CheckOutcome, CheckSkipped, EndpointUnderTest, check
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.metrics import Metrics

MORE = 2  # requests of the burst beyond max_num_seqs
ENDLESS = 4096  # tokens of the answer whose client disconnects, if the context is long enough
EARLY = 2  # chunks after which the client disconnects: some servers send one with only the role before the request runs
PATIENCE = 5.0  # seconds within which the engine must notice that the client disconnected

# Seconds after the disconnection in which an engine need not have noticed it: a whole answer proves nothing then.
NOTICE = 0.5

INTERVAL = 0.05

STEP = 1.0  # seconds without a further token after which an engine that only counts tokens has stopped

# Seconds of a whole answer that a fast engine may end before a busy machine notices that the client disconnected.
SHORT_ANSWER = 10.0

MOST_STREAMS = 3  # how often such a short answer is asked for: one that is cancelled proves that the engine stops


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
    if endpoint.metrics().engine is None:
        raise CheckSkipped(asked, "/metrics has no counters of a supported engine: running requests are unknown")
    seen = _leave(tested, tokens)
    for _ in range(MOST_STREAMS - 1):
        if seen.stopped or seen.elsewhere or seen.continued >= PATIENCE or seen.seconds > SHORT_ANSWER:
            break
        seen = _leave(tested, tokens)
    if seen.stopped:
        return CheckOutcome(True, asked, seen.counted)
    if seen.elsewhere:
        hint = "/metrics does not show the request: it belongs to another engine"
        return CheckOutcome(False, asked, seen.counted, hint)
    if seen.after.computed and seen.others >= PATIENCE:
        raise CheckSkipped(
            asked, f"requests of other clients run, and this engine does not tell them apart: {seen.counted}"
        )
    if seen.shown and seen.continued >= NOTICE:
        hint = "the engine continues for disconnected clients: a proxy keeps their connections open"
        return CheckOutcome(False, asked, seen.counted, hint)
    why = "all tokens were generated before the engine could notice the disconnection"
    raise CheckSkipped(asked, f"{why if seen.whole else 'requests of other clients ended meanwhile'}: {seen.counted}")


@dataclass(frozen=True)
class _Left:
    """The counters before a stream of `tokens`, while it ran, and `waited` seconds after its client disconnected.

    `continued` are the seconds from the disconnection until counters were asked for that still showed the request, 0 if
    none did; `seconds` are those from the request to the last counters, `others` those in which earlier requests ran.
    """

    tokens: int
    before: Metrics
    during: Metrics
    after: Metrics
    waited: float
    continued: float
    seconds: float
    others: float

    @property
    def made(self) -> int:
        """Tokens that the engine generated meanwhile."""
        return self.after.generated_tokens - self.before.generated_tokens

    @property
    def whole(self) -> bool:
        """Whether the answer was generated to its end. SGLang counts tokens at the end of a request."""
        return self.made >= self.tokens

    @property
    def shown(self) -> bool:
        """Whether the counters showed the request while it ran."""
        return self.during.running > self.before.running or self.during.computed > self.before.computed

    @property
    def stopped(self) -> bool:
        """Whether the request ended before its last token."""
        ended = self.after.running <= self.before.running and self.continued < PATIENCE
        return self.shown and ended and not self.whole

    @property
    def elsewhere(self) -> bool:
        """Whether these are the counters of another engine: with requests of other clients, one may have ended."""
        return not self.shown and not self.whole and self.before.running == 0

    @property
    def counted(self) -> str:
        """The counters in words."""
        running = f"{self.during.running} during the stream, {self.after.running} after {self.waited:.1f} s"
        others = f"{self.before.running} before, " if self.before.running else ""
        if self.after.computed:
            during = self.during.computed - self.before.computed
            running = f"{during} tokens during the stream, {self.after.computed - self.during.computed} after it"
            return f"computed: {running}; none more after {self.waited:.1f} s"
        return f"running: {others}{running}; {self.made} tokens generated"


def _leave(tested: EndpointUnderTest, tokens: int) -> _Left:
    """Begin a stream, disconnect early, and watch the counters until the engine stops, or PATIENCE is over."""
    before, others = _once_at_most(0, tested)
    began = time.monotonic()
    during = _begin(tested, tokens)
    left = time.monotonic()
    after, continued = _once_at_most(before.running, tested)
    now = time.monotonic()
    return _Left(tokens, before, during, after, now - left, continued, now - began, others)


def _once_at_most(running: int, tested: EndpointUnderTest) -> tuple[Metrics, float]:
    """The counters once no more requests run, or PATIENCE is over, and for how many seconds more were seen to run."""
    began = asked = time.monotonic()
    more, computed = 0.0, -1
    while (counted := tested.endpoint.metrics()).running > running or counted.computed not in {0, computed}:
        # they may be as old as the question: an engine that answers late has not continued for as long
        more = asked - began
        if more >= PATIENCE:
            break
        computed = counted.computed
        time.sleep(STEP if computed else INTERVAL)
        asked = time.monotonic()
    return counted, more


def _begin(tested: EndpointUnderTest, tokens: int) -> Metrics:
    """Begin a stream, disconnect early, and return the counters just before that."""
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
                return tested.endpoint.metrics()
    raise EndpointError(f"the stream ended after fewer than {EARLY} chunks")

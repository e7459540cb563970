"""Simulates one engine and its users, and computes how many replicas a load needs.

An engine computes in steps. A step yields `tokens_per_step` tokens for each sequence that is decoded; the tokens of new
prompts are computed in the same steps, and make them longer. A prompt may take more steps than its tokens need:
llama.cpp computes the last tokens of a prompt in a step of their own if the model has recurrent layers (it keeps the
state before them). Beside other sequences that step takes as long as theirs.

The simulation is a queue in front of a single server: a closed loop of users with time to think (simpy). The engine
admits requests in their order, up to a number. A step holds a token or block of each sequence and as many tokens of new
prompts as fit; a prompt's last step yields the first token. Times of thought are exponential. Sizes are equal or
gamma-distributed. Each user has its own random numbers, so that loads of different size are compared with the same
users, and a real load can have the same times of thought.

The replicas are the users of the load, divided by the most users that one engine serves within the goals. Users are
divided evenly and stay with their replica, as a router for prefixes keeps them. A router that sends each request to the
least busy replica does at least as well, so the number is an upper bound in that respect.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Annotated

import simpy

from dflash_deploy.document import Count, Documented, Hidden, Keywords, Rate, Seconds
from dflash_deploy.features.capacity.load_text import UserLoad

SHORTEST_STEP = 1e-6
"""Shortest step in seconds: noise in measured times must not make a step free."""


@dataclass(frozen=True)
class Service:
    """The service of one engine. `steps` are sequences and seconds of a step, both rising.

    `prompt_token_s` are the seconds that each token of a prompt adds to a step, `latency_s` those of a request outside
    of the engine's steps. `most_sequences` sequences run at the same time; `chunk` tokens fit into a step. The first
    token of an answer comes with step `prompt_steps` of its prompt, or later if its tokens need more. Further steps
    have only the time of the sequences beside it.
    """

    steps: tuple[tuple[float, float], ...]
    tokens_per_step: float
    prompt_token_s: float
    latency_s: float
    most_sequences: int
    chunk: int
    prompt_steps: int = 1

    @property
    def most_known(self) -> float:
        """The most sequences in a step whose time is known; beyond it is an extrapolation."""
        return self.steps[-1][0]

    def step_s(self, sequences: float) -> float:
        """Seconds of a step. Beyond the known steps each sequence adds as much as between the last two.

        If only one is known, the time beyond it is proportional to the sequences.
        """
        first, last = self.steps[0], self.steps[-1]
        if sequences <= first[0]:
            return first[1]
        if sequences > last[0]:
            before = self.steps[-2] if len(self.steps) > 1 else (0.0, 0.0)
            return _between(before, last, sequences)
        below, above = next(pair for pair in pairwise(self.steps) if sequences <= pair[1][0])
        return _between(below, above, sequences)

    def token_s(self, sequences: float) -> float:
        """Seconds between two tokens of a sequence, while no prompt is computed."""
        return self.step_s(sequences) / self.tokens_per_step


def rising(steps: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The steps by their sequences: one with more sequences takes at least as long as those with fewer."""
    kept: list[tuple[float, float]] = []
    for sequences, seconds in sorted(steps):
        longest = max(seconds, SHORTEST_STEP, *(known for _, known in kept))
        if kept and kept[-1][0] == sequences:
            kept.pop()
        kept.append((sequences, longest))
    return tuple(kept)


def _between(below: tuple[float, float], above: tuple[float, float], sequences: float) -> float:
    """The line through two steps, also beyond the second."""
    slope = (above[1] - below[1]) / (above[0] - below[0])
    return above[1] + slope * (sequences - above[0])


REQUESTS = 1500
"""Requests that a simulation measures, and at least two of each user."""

Happening = Generator[simpy.Event, None, None]


@dataclass(frozen=True)
class Simulated(Documented):
    """One replica with a number of users, as simulated."""

    users: Count
    """Users of this replica."""
    requests: Count
    """Requests that were counted."""
    ttft_p50_s: Seconds
    """Median time to the first token, in seconds."""
    ttft_p95_s: Seconds
    """95th percentile of the time to the first token, in seconds."""
    answer_p50_s: Seconds
    """Median time to the last token, in seconds."""
    answer_p95_s: Seconds
    """95th percentile of the time to the last token, in seconds."""
    answer_mean_s: Seconds
    """Mean time to the last token, in seconds."""
    tokens_per_s: Rate
    """Completion tokens per second."""
    requests_per_s: Rate
    """Answered requests per second."""
    sequences: Rate
    """Mean number of requests in flight, waiting ones included."""

    def meets(self, load: UserLoad) -> bool:
        """Whether the goals of a load are met."""
        first, whole = load.p95_ttft_s, load.p95_answer_s
        return (first is None or self.ttft_p95_s <= first) and (whole is None or self.answer_p95_s <= whole)


@dataclass(frozen=True)
class Times:
    """Seconds until the first and the last token of each request, in the order of their ends, and tokens per second."""

    ttft: tuple[float, ...]
    answer: tuple[float, ...]
    tokens_per_s: float


@dataclass
class _Request:
    """A request in the engine: what is left of its prompt and of the steps for it, the steps of its answer after them,
    and what its user waits for.
    """

    prompt: int
    prompt_steps: int
    steps: int
    first: simpy.Event
    last: simpy.Event


@dataclass
class _Record:
    """What is counted once the simulation has settled."""

    skip: int
    wanted: int
    finished: simpy.Event
    ended: int = 0
    since: float = 0.0
    until: float = 0.0
    flight: int = 0
    flight_changed: float = 0.0
    flight_seconds: float = 0.0
    tokens: int = 0
    ttft: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)

    def change(self, now: float, by: int) -> None:
        """A request has started (+1) or ended (-1)."""
        self.flight_seconds += self.flight * (now - self.flight_changed)
        self.flight_changed = now
        self.flight += by

    def end(self, now: float, ttft: float, answer: float, tokens: int) -> None:
        """Count an answered request, unless it belongs to the start."""
        self.change(now, -1)
        self.ended += 1
        if self.ended == self.skip:
            self.since, self.flight_seconds = now, 0.0
        if self.ended <= self.skip or len(self.ttft) == self.wanted:
            return
        self.ttft.append(ttft)
        self.answer.append(answer)
        self.tokens += tokens
        if len(self.ttft) == self.wanted:
            self.until = now
            self.finished.succeed()


class _Engine:
    """The server. `run` is its process."""

    def __init__(self, clock: simpy.Environment, service: Service) -> None:
        self._clock = clock
        self._service = service
        self._arrival = clock.event()
        self._waiting: deque[_Request] = deque()
        self._prompts: deque[_Request] = deque()
        self._decoding: list[tuple[int, int, _Request]] = []
        self._steps = 0
        self._order = count()

    def submit(self, request: _Request) -> None:
        """A request arrives."""
        self._waiting.append(request)
        if not self._arrival.triggered:
            self._arrival.succeed()

    def run(self) -> Happening:
        """Compute steps for ever, and wait while there is nothing to compute."""
        while True:
            self._admit()
            if self._prompts:
                yield from self._step_with_prompts()
            elif self._decoding:
                yield from self._steps_without_prompts()
            else:
                yield self._arrival

    def _admit(self) -> None:
        while self._waiting and len(self._decoding) + len(self._prompts) < self._service.most_sequences:
            self._prompts.append(self._waiting.popleft())
        if not self._waiting:
            self._arrival = self._clock.event()

    def _step_with_prompts(self) -> Happening:
        """One step with as many tokens of prompts as fit beside the sequences that are decoded.

        A further step of a prompt has no time of its own: what it takes without other sequences is in its first one.
        """
        room, computed, begun = max(self._service.chunk - len(self._decoding), 1), 0, 0
        complete: list[_Request] = []
        for request in self._prompts:
            taken = min(request.prompt, room - computed)
            request.prompt -= taken
            request.prompt_steps -= 1
            computed, begun = computed + taken, begun + bool(taken)
            if request.prompt:
                break
            if request.prompt_steps <= 0:
                complete.append(request)
            if computed == room:
                break
        sequences = len(self._decoding) + begun
        seconds = (self._service.step_s(sequences) if sequences else 0.0) + computed * self._service.prompt_token_s
        yield self._clock.timeout(seconds)
        self._advance(1)
        for request in complete:
            self._prompts.popleft()
            request.first.succeed()
            if request.steps:
                heapq.heappush(self._decoding, (self._steps + request.steps, next(self._order), request))
            else:
                request.last.succeed()

    def _steps_without_prompts(self) -> Happening:
        """Equal steps until an answer is complete, or until the step in which an admitted request arrives."""
        seconds = self._service.step_s(len(self._decoding))
        until_end = self._decoding[0][0] - self._steps
        if len(self._decoding) == self._service.most_sequences:
            yield self._clock.timeout(until_end * seconds)
            self._advance(until_end)
            return
        started = self._clock.now
        yield self._clock.timeout(until_end * seconds) | self._arrival
        # a request waits for the end of the step in which it arrives
        done = min(math.ceil((self._clock.now - started) / seconds - 1e-9), until_end)
        rest = started + done * seconds - self._clock.now
        if rest > 0:
            yield self._clock.timeout(rest)
        self._advance(done)

    def _advance(self, steps: int) -> None:
        self._steps += steps
        while self._decoding and self._decoding[0][0] <= self._steps:
            heapq.heappop(self._decoding)[2].last.succeed()


def simulate(service: Service, load: UserLoad, users: int, *, requests: int = REQUESTS, seed: int = 0) -> Simulated:
    """The figures of one engine with this many users of a load, after the first requests of each have passed."""
    wanted = max(requests, 2 * users)
    return _figures(_run(service, load, users, wanted, max(wanted // 4, users), seed), users)


def simulated_times(service: Service, load: UserLoad, users: int, *, requests: int, skip: int, seed: int = 0) -> Times:
    """The times of single requests, after the first `skip` ones."""
    record = _run(service, load, users, requests, skip, seed)
    return Times(tuple(record.ttft), tuple(record.answer), record.tokens / (record.until - record.since))


def thoughts(think_s: float, number: int, seed: int = 0) -> Iterator[float]:
    """Seconds for which a user thinks before each request."""
    # of a text: the numbers of users next to each other must not be alike
    numbers = random.Random(f"{seed} {number}")  # noqa: S311
    while True:
        yield numbers.expovariate(1 / think_s) if think_s else 0.0


def _run(service: Service, load: UserLoad, users: int, wanted: int, skip: int, seed: int) -> _Record:
    clock = simpy.Environment()
    record = _Record(skip=skip, wanted=wanted, finished=clock.event())
    engine = _Engine(clock, service)
    clock.process(engine.run())
    for number in range(users):
        sizes = random.Random(f"{seed} {number} sizes")  # noqa: S311
        clock.process(_user(clock, engine, service, load, record, thoughts(load.think_s, number, seed), sizes))
    clock.run(until=record.finished)
    return record


def _user(
    clock: simpy.Environment,
    engine: _Engine,
    service: Service,
    load: UserLoad,
    record: _Record,
    thinks: Iterator[float],
    sizes: random.Random,
) -> Happening:
    """Think, ask, wait for the answer, and again."""
    for think_s in thinks:
        if think_s:
            yield clock.timeout(think_s)
        prompt, answer = (_draw(mean, load.spread, sizes) for mean in (load.prompt_tokens, load.answer_tokens))
        steps = _steps(answer, service, sizes)
        request = _Request(prompt, service.prompt_steps, steps, clock.event(), clock.event())
        asked = clock.now
        record.change(asked, +1)
        if service.latency_s:
            yield clock.timeout(service.latency_s)
        engine.submit(request)
        yield request.first
        ttft = clock.now - asked
        if request.steps:
            yield request.last
        record.end(clock.now, ttft, clock.now - asked, answer)


def _draw(mean: int, spread: float, numbers: random.Random) -> int:
    """A size of at least 1: the mean itself, or gamma-distributed with this coefficient of variation."""
    if not spread:
        return mean
    shape = 1 / spread**2
    return max(round(numbers.gammavariate(shape, mean / shape)), 1)


def _steps(answer: int, service: Service, numbers: random.Random) -> int:
    """Steps after the one with the first token. A fraction of a step is a whole one as often as it says."""
    steps = (answer - 1) / service.tokens_per_step
    return math.floor(steps) + (numbers.random() < steps % 1)


def _figures(record: _Record, users: int) -> Simulated:
    seconds = record.until - record.since
    ttft, answer = sorted(record.ttft), sorted(record.answer)
    return Simulated(
        users=users,
        requests=len(ttft),
        ttft_p50_s=_share(ttft, 0.5),
        ttft_p95_s=_share(ttft, 0.95),
        answer_p50_s=_share(answer, 0.5),
        answer_p95_s=_share(answer, 0.95),
        answer_mean_s=statistics.fmean(answer),
        tokens_per_s=record.tokens / seconds,
        requests_per_s=len(ttft) / seconds,
        sequences=record.flight_seconds / seconds,
    )


def _share(ordered: list[float], share: float) -> float:
    return statistics.quantiles(ordered, n=100, method="inclusive")[round(share * 100) - 1]


STEP = 0.05
"""Share by which the numbers of users differ that are tried: closer ones differ less than two simulations do."""


@dataclass(frozen=True)
class Sized(Documented):
    """The replicas that a load needs with one way to draft."""

    service: Hidden[Service]
    replicas: Annotated[int, Keywords(minimum=1)] | None
    """Replicas that meet the goals; null if no number of them does."""
    users_of_one: Count
    """The most users that one replica serves within the goals, at most those of the load."""
    tokens_per_s: Rate
    """Completion tokens per second of all replicas together."""
    one: Simulated
    """One replica with its share of the users; with a single user if no number of replicas meets the goals."""


def size(service: Service, load: UserLoad) -> Sized:
    """The replicas of this service that a load needs."""
    known: dict[int, Simulated] = {}

    def simulated(users: int) -> Simulated:
        if users not in known:
            known[users] = simulate(service, load, users)
        return known[users]

    most = most_users(lambda users: simulated(users).meets(load), load.users)
    replicas = replicas_for(load.users, most)
    share = math.ceil(load.users / replicas) if replicas else 1
    # chance may say that fewer users wait longer: the figures of more users are the worst that can be expected
    figures = simulated(share) if most == 0 or simulated(share).meets(load) else simulated(most)
    return Sized(service, replicas, most, figures.tokens_per_s * (replicas or 1), figures)


def replicas_for(users: int, users_of_one: int) -> int | None:
    """The replicas for this many users; `None` if one replica serves not even one user within the goals."""
    return math.ceil(users / users_of_one) if users_of_one else None


def most_users(meets: Callable[[int], bool], limit: int) -> int:
    """The most users, up to `limit`, with which the goals are met, if fewer users always meet them too; 0 if none.

    Only numbers STEP apart are tried, in an order that does not depend on `limit`: so a higher limit never gives less.
    """
    good, bad = -1, 0
    while meets(_place(bad)):
        if _place(bad) >= limit:
            return limit
        good, bad = bad, 2 * bad + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if meets(_place(middle)):
            if _place(middle) >= limit:
                return limit
            good = middle
        else:
            bad = middle
    return min(_place(good), limit) if good >= 0 else 0


def _place(number: int) -> int:
    """The numbers that are tried: all up to 1 / STEP, then each a share of STEP above the one before."""
    every = round(1 / STEP)
    return number + 1 if number < every else round(every * (1 + STEP) ** (number - every + 1))


def drafts_pay_below(drafted: Service, plain: Service) -> int | None:
    """The least number of sequences at the same time at which drafts are no faster; `None` if they always are.

    While no prompt is computed: a prompt costs the same with drafts and without.
    """
    most_sequences = min(drafted.most_sequences, plain.most_sequences)
    return next(
        (count for count in range(1, most_sequences + 1) if drafted.token_s(count) >= plain.token_s(count)), None
    )

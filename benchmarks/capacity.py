"""`capacity` beside real users: one and two engines of llama.cpp, each at three loads.

Load and `bench` take turns, both engines at the same time, since they share two cores: each part of the load is
simulated with the figures measured just before and after it, and with the users' real times of thought. Users who think
load one engine, and twice as many load two, each user on one of them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from benchmarks.intervals import interval
from benchmarks.rows import Row
from dflash_deploy.assets import asset
from dflash_deploy.bench.figures import quantile
from dflash_deploy.bench.workload import load_prompts
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.stream import TimedCompletion, streaming_body, time_completion
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.capacity.load_text import UserLoad
from dflash_deploy.features.capacity.measured import measured_service
from dflash_deploy.features.capacity.operations import prompt_steps_of
from dflash_deploy.features.capacity.simulation import Service, simulate, simulated_times, thoughts
from dflash_deploy.intake.documents import BenchRow
from dflash_deploy.operations.figures import last_figures
from dflash_deploy.planning import plan_of
from dflash_deploy.startup.engine import endpoint_of
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port

SEQUENCES = 4
CHUNK = 2048
THINK_S = 2.0
SPREAD = 0.2
"""Coefficient of variation of the answers' steps: the tiny pair needs 12 to 23 for a prompt of `bench`."""

BUSY = (0.5, 0.8, 1.1)
"""Loads: users as a share of those who would keep the engine busy if none of them ever waited."""

PARTS = 3
REQUESTS = 80
"""Requests of each engine in each part, after the first one of each user."""

AIM = "0.80 to 1.25"


@dataclass
class Counted:
    """What the parts of a load add up to: seconds to the first token of each request, tokens, and seconds."""

    ttft: list[float] = field(default_factory=list)
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, ttft: Iterable[float], tokens: float, seconds: float) -> None:
        """Add a part."""
        self.ttft += ttft
        self.tokens += tokens
        self.seconds += seconds

    @property
    def p95_ms(self) -> float:
        """p95 of the time to the first token."""
        return 1000 * quantile(sorted(self.ttft), 0.95)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def rows(engines: Sequence[int] = (1, 2)) -> Iterator[Row]:
    """p95 of TTFT and throughput, measured and predicted."""
    with ExitStack() as stack:
        deployments = [stack.enter_context(_started()) for _ in range(max(engines))]
        endpoints = [stack.enter_context(endpoint_of(one, plan_of(one))) for one in deployments]
        for count, busy in itertools.product(engines, BUSY):
            yield from _compared(deployments[:count], endpoints[:count], busy)


def _compared(deployments: Sequence[Deployment], endpoints: Sequence[Endpoint], busy: float) -> Iterator[Row]:
    measured, predicted = Counted(), Counted()
    before = _benched(deployments)
    prompt_steps = prompt_steps_of(plan_of(deployments[0]))
    users = _users(*_service(before, prompt_steps), busy)
    for part in range(PARTS):
        begun, seeds = os.getloadavg()[0], [len(endpoints) * part + number for number in range(len(endpoints))]
        answers, seconds = asyncio.run(_loaded(endpoints, users, seeds))
        measured.add((one.ttft for one in answers), sum(one.completion_tokens for one in answers), seconds)
        after = _benched(deployments)
        service, asked = _service([*before, *after], prompt_steps)
        for seed in seeds:
            times = simulated_times(service, asked, users, requests=REQUESTS, skip=users, seed=seed)
            predicted.add(times.ttft, times.tokens_per_s * seconds, 0.0)
        predicted.add((), 0.0, seconds)
        before = after
        print(
            f"part {part + 1}: steps of {', '.join(f'{1000 * step:.1f}' for _, step in service.steps)} ms, "
            f"load average {begun:.1f}",
            flush=True,
        )
    count = len(endpoints)
    what = f"{count} engine{'s' * (count > 1)}, {users * count} users ({busy:g} of saturation)"
    low, high = (1000 * end for end in interval(measured.ttft, 0.95))
    sure = (predicted.p95_ms / high, predicted.p95_ms / low)
    requests = len(measured.ttft)
    yield Row(f"{what}, p95 TTFT", measured.p95_ms, predicted.p95_ms, "ms", AIM, requests, sure)
    yield Row(f"{what}, throughput", measured.rate, predicted.rate, "tokens/s", AIM, requests)


def _benched(deployments: Sequence[Deployment]) -> list[BenchRow]:
    """The rows of the engines as `bench` measures them now, all at the same time."""
    size = ("--concurrency", "1,4", "--requests", "29", "--no-blocks")
    with ThreadPoolExecutor() as pool:
        for ran in pool.map(lambda one: dflash("bench", *size, at=one.directory), deployments):
            ran.succeeded()
    kept = [last_figures(one) for one in deployments]
    return [row for figures in kept if figures is not None for row in figures.rows]


def _service(rows: Sequence[BenchRow], prompt_steps: int) -> tuple[Service, UserLoad]:
    """The engines behind rows of `bench`, and requests as long as those of `bench`."""
    service = measured_service(rows, most_sequences=SEQUENCES, chunk=CHUNK, prompt_steps=prompt_steps)
    if service is None:
        raise SystemExit("bench measured no answers")
    requests = sum(row.requests for row in rows)
    prompt = round(sum(row.input_tokens for row in rows) / requests)
    answer = round(sum(row.output_tokens for row in rows) / requests)
    return service, UserLoad(1, THINK_S, prompt, answer, SPREAD, None, None)


def _users(service: Service, asked: UserLoad, busy: float) -> int:
    """Users who keep the engine busy for this share of the time, by its highest throughput."""
    full = simulate(service, replace(asked, think_s=0.0), SEQUENCES)
    return max(round(busy * full.requests_per_s * (THINK_S + full.answer_mean_s)), 1)


async def _loaded(
    endpoints: Sequence[Endpoint], users: int, seeds: Sequence[int]
) -> tuple[list[TimedCompletion], float]:
    """The answers of all users after their first ones, and the seconds in which they came."""
    prompts = load_prompts(asset("models/tiny/prompts.jsonl"), "long")
    answers: list[TimedCompletion] = []
    first, wanted = users * len(endpoints), REQUESTS * len(endpoints)
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(one.async_session(users)) for one in endpoints]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [
            group.create_task(
                _user(session, [streaming_body(one.body(place.model)) for one in prompts], number, seed, answers)
            )
            for place, session, seed in zip(endpoints, sessions, seeds, strict=True)
            for number in range(users)
        ]
        while len(answers) < first:
            await asyncio.sleep(0.01)
        started, begun = time.perf_counter(), len(answers)
        while len(answers) < begun + wanted:
            await asyncio.sleep(0.01)
        seconds, counted = time.perf_counter() - started, answers[begun:]
        for task in tasks:
            task.cancel()
    if failed := [one.problem for one in counted if one.problem]:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
    return counted, seconds


async def _user(
    session: aiohttp.ClientSession, bodies: list[bytes], number: int, seed: int, answers: list[TimedCompletion]
) -> None:
    """Think as the simulated user does, ask, and again."""
    order = random.Random(number).sample(bodies, len(bodies))  # noqa: S311
    for think_s, body in zip(thoughts(THINK_S, number, seed), itertools.cycle(order)):
        await asyncio.sleep(think_s)
        answers.append(await time_completion(session, body))


@contextmanager
def _started() -> Iterator[Deployment]:
    """A native deployment of the tiny pair until the block ends."""
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        options = ("--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", "--port", str(free_port()))
        dflash("init", *options, at=directory).succeeded()
        edit_env(directory, MAX_NUM_SEQS=str(SEQUENCES))
        try:
            dflash("up", at=directory).succeeded()
            yield Deployment(directory)
        finally:
            dflash("down", at=directory)

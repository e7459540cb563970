"""`plan --load` beside real users: one and two engines of llama.cpp, each at three loads.

`bench` measures the engines just before each load, both at the same time if both get it, since they share two cores:
the simulation gets their figures. Then users who think load one engine, and twice as many load two, each user on one of
them. An engine has one thread.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from benchmarks.rows import Row
from dflash_deploy.assets import asset
from dflash_deploy.bench import load_prompts
from dflash_deploy.bench.figures import quantile
from dflash_deploy.capacity import Service, Simulated, UserLoad, measured_service, simulate
from dflash_deploy.client import Endpoint, TimedCompletion, streaming_body, time_completion
from dflash_deploy.deployment import Deployment
from dflash_deploy.operations.bench_figures import last_figures
from dflash_deploy.planning import plan_of
from dflash_deploy.startup import endpoint_of
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port

SEQUENCES = 4
CHUNK = 2048
THINK_S = 2.0
BUSY = (0.5, 0.8, 1.1)
"""Loads: users as a share of those who would keep the engine busy if none of them ever waited."""

REQUESTS = 300
"""Requests of each engine at each load, after the first ones of each user."""

AIM = "0.80 to 1.25"


def rows() -> Iterator[Row]:
    """p95 of TTFT and throughput, measured and predicted."""
    with ExitStack() as stack:
        deployments = [stack.enter_context(_started()) for _ in range(2)]
        endpoints = [stack.enter_context(endpoint_of(one, plan_of(one))) for one in deployments]
        users = {busy: _users(*_service(deployments[:1]), busy) for busy in BUSY}
        for busy, count in itertools.product(BUSY, (1, 2)):
            service, asked = _service(deployments[:count])
            expected = simulate(service, asked, users[busy], requests=4000)
            yield from _compared(endpoints[:count], asked, users[busy], expected, busy)


def _service(deployments: Sequence[Deployment]) -> tuple[Service, UserLoad]:
    """The engines as `bench` measures them now, all at the same time, and requests as long as those of `bench`."""
    size = ("--concurrency", "1,2,3,4", "--requests", "24", "--no-blocks")
    with ThreadPoolExecutor() as pool:
        for ran in pool.map(lambda one: dflash("bench", *size, at=one.directory), deployments):
            ran.succeeded()
    kept = [last_figures(one) for one in deployments]
    rows = [row for figures in kept if figures is not None for row in figures.rows]
    service = measured_service(rows, most_sequences=SEQUENCES, chunk=CHUNK)
    if service is None:
        raise SystemExit("bench measured no answers")
    requests = sum(row.requests for row in rows)
    prompt = round(sum(row.input_tokens for row in rows) / requests)
    answer = round(sum(row.output_tokens for row in rows) / requests)
    print(f"seconds of a step: {', '.join(f'{seconds:.4f}' for _, seconds in service.steps)}", flush=True)
    return service, UserLoad(1, THINK_S, prompt, answer, 0.0, None, None)


def _users(service: Service, asked: UserLoad, busy: float) -> int:
    """Users who keep the engine busy for this share of the time, by its highest throughput."""
    full = simulate(service, UserLoad(1, 0.0, asked.prompt_tokens, asked.answer_tokens, 0.0, None, None), SEQUENCES)
    return max(round(busy * full.requests_per_s * (THINK_S + full.answer_mean_s)), 1)


def _compared(
    endpoints: Sequence[Endpoint], asked: UserLoad, users: int, expected: Simulated, busy: float
) -> Iterator[Row]:
    count = len(endpoints)
    load_before = os.getloadavg()[0]
    answers, seconds = asyncio.run(_loaded(endpoints, asked, users))
    failed = [one.problem for one in answers if one.problem]
    if failed:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
    ttft = 1000 * quantile(sorted(one.ttft for one in answers), 0.95)
    rate = sum(one.completion_tokens for one in answers) / seconds
    engines = "1 engine" if count == 1 else f"{count} engines"
    what = f"{engines}, {users * count} users ({busy:g} of saturation)"
    print(
        f"{what}: {len(answers)} requests in {seconds:.0f} s, load of the machine before {load_before:.1f}", flush=True
    )
    yield Row(f"{what}, p95 TTFT", ttft, 1000 * expected.ttft_p95_s, "ms", AIM, 1)
    yield Row(f"{what}, throughput", rate, count * expected.tokens_per_s, "tokens/s", AIM, 1)


async def _loaded(endpoints: Sequence[Endpoint], asked: UserLoad, users: int) -> tuple[list[TimedCompletion], float]:
    """The answers of all users after their first ones, and the seconds in which they came."""
    prompts = load_prompts(asset("models/tiny/prompts.jsonl"), "long")
    answers: list[TimedCompletion] = []
    wanted = REQUESTS * len(endpoints)
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(one.async_session(users)) for one in endpoints]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [
            group.create_task(
                _user(session, [streaming_body(one.body(place.model)) for one in prompts], asked, number, answers)
            )
            for place, session in zip(endpoints, sessions, strict=True)
            for number in range(users)
        ]
        first = 2 * users * len(endpoints)
        while len(answers) < first:
            await asyncio.sleep(0.01)
        started, begun = time.perf_counter(), len(answers)
        while len(answers) < begun + wanted:
            await asyncio.sleep(0.01)
        seconds, counted = time.perf_counter() - started, answers[begun:]
        for task in tasks:
            task.cancel()
    return counted, seconds


async def _user(
    session: aiohttp.ClientSession, bodies: list[bytes], asked: UserLoad, number: int, answers: list[TimedCompletion]
) -> None:
    """Think, ask, and again."""
    numbers = random.Random(number)  # noqa: S311
    for body in itertools.cycle(numbers.sample(bodies, len(bodies))):
        await asyncio.sleep(numbers.expovariate(1 / asked.think_s))
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

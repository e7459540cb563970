"""`test --soak`: the conversations of `bench -w agents` for some minutes: errors, memory, stalls, latency."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

from dflash_deploy.bench.agents import AgentConversation, characters_per_token, shape_for
from dflash_deploy.bench.workload import Limits
from dflash_deploy.checks.check import CheckResult, CheckStatus
from dflash_deploy.checks.run import CheckReport
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import START_IT, Endpoint, check_answering
from dflash_deploy.client.stream import TimedCompletion
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.restarts import refuse_other_ranks
from dflash_deploy.operations.test import Tested
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.engine import whole_endpoint

ANSWER, MOST_AGENTS, DEFAULT_CONTEXT, HOPELESS = 128, 8, 8192, 20  # failed requests in a row that end the load
LEAST = 16  # samples of memory in a half, answers in a third, and answers in all, that can be compared
GROWS = 0.03  # share by which memory may grow in the second half
STALL_S, SLOWER = 5.0, 5.0  # seconds without a token, and multiple of the median of the longest silences
DRIFT = 1.5  # how many times slower the answers of the last third may be
MIB = 2**20

Memory = Sequence[tuple[float, int]]
# Seconds since the start, with the bytes of the engine's memory; or with the turn and answer of a request.
Requests = Sequence[tuple[float, int, TimedCompletion]]


def soak(directory: Path, minutes: float, *, reporter: Reporter = SILENT) -> Tested:
    """Load the deployment for `minutes`. Raises NoDeployment, BadInput, SettingsRefused, EngineNotReady."""
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    with whole_endpoint(deployment, plan) as endpoint:
        check_answering(endpoint, hint=START_IT, redact=deployment.redact)
        read = runtime_for(deployment, plan).memory
        try:
            memory, requests = asyncio.run(_load(endpoint, plan, read, minutes * 60, reporter))
        except EndpointError as problem:
            raise EngineNotReady(deployment.redact(str(problem)), hint=START_IT) from None
    found = soak_checks(memory, requests, caches_of(plan))
    checks = tuple(replace(check, got=deployment.redact(check.got)) for check in found)
    for check in checks:
        reporter.checked(check)
    return Tested(f"{endpoint.url}/v1", endpoint.model, deployment, CheckReport(checks), deployment.redact)


async def _load(
    endpoint: Endpoint, plan: Plan, read: Callable[[], int | None], seconds: float, reporter: Reporter
) -> tuple[Memory, Requests]:
    # one more than the engine serves: a sequence that it loses is waited for
    agents = min((plan.settings.max_num_seqs or MOST_AGENTS) + 1, MOST_AGENTS)
    context = plan.settings.max_model_len or DEFAULT_CONTEXT
    shape, characters = shape_for(context, min(ANSWER, context // 8)), characters_per_token(endpoint)
    reporter.note(f"{agents} agents for {seconds / 60:g} min, up to {shape.turns} turns and {context:,} tokens")
    memory, requests = list[tuple[float, int]](), list[tuple[float, int, TimedCompletion]]()
    began, name = time.perf_counter(), f"soak {time.time_ns()}"

    async def agent(number: int) -> None:
        for talk in itertools.count():
            one = AgentConversation(shape, f"{name} {talk}", number, characters, name)
            while one.turn < shape.turns:
                sent, turn = time.perf_counter() - began, one.turn
                requests.append((sent, turn, await one.ask(session, endpoint.model, Limits())))
                hopeless = len(requests) >= HOPELESS and all(got.problem for _, _, got in requests[-HOPELESS:])
                if time.perf_counter() - began >= seconds or hopeless:
                    return

    async def watch() -> None:
        for minute in itertools.count(1):
            while (now := time.perf_counter() - began) < 60 * minute:
                if (size := await asyncio.to_thread(read)) is not None:
                    memory.append((now, size))
                await asyncio.sleep(max(seconds / 600, 0.5))
            reporter.note(f"{minute} min: {len(requests)} requests")

    async with endpoint.async_session(agents) as session:
        watching = asyncio.create_task(watch())
        await asyncio.gather(*map(agent, range(agents)))
        watching.cancel()
    return memory, requests


def caches_of(plan: Plan) -> int:
    """Bytes by which the engine may grow as its caches in host memory fill: of prompts, and of KV on a processor."""
    settings = plan.settings
    prompts = settings.prompt_cache_mib if plan.engine.kind.knows(Settings.prompt_cache_mib) else 0
    blocks = 1024 * (settings.vllm_cpu_kvcache_space or 0) if plan.engine.cpu else 0
    # llama.cpp b11549 grew by 1.06 times its prompt cache in 85 minutes
    return int((prompts + blocks) * 1.1 * MIB)


def soak_checks(memory: Memory, requests: Requests, caches: int) -> Iterator[CheckResult]:
    """The verdicts. `caches` are bytes by which the memory may grow."""
    failed = [(at, one.problem) for at, _, one in requests if one.problem]
    first = f", the first after {failed[0][0] / 60:.1f} min: {failed[0][1]}" if failed else ""
    yield _result("errors", bool(failed) or not requests, f"{len(failed)} of {len(requests)} requests failed{first}")
    sizes = [size for _, size in memory]
    half, grew = sizes[len(sizes) // 2 :], None
    if len(half) >= LEAST:
        before, after = median(half[: len(half) // 4]), median(half[-(len(half) // 4) :])
        grew = after - before > GROWS * before and max(sizes) - sizes[0] > caches
    yield _result("memory", grew, f"from {sizes[0] / MIB:,.0f} to {sizes[-1] / MIB:,.0f} MiB" if sizes else "unknown")
    silences = [(max(one.ttft, *one.gaps, 0.0), at) for at, _, one in requests if not one.problem]
    # one of a few answers may just have waited for the others
    enough = len(silences) >= LEAST
    limit = max(STALL_S, SLOWER * median(silent for silent, _ in silences)) if silences else 0.0
    longest, at = max(silences, default=(0.0, 0.0))
    said = f"{longest:.1f} s without a token, in an answer after {at / 60:.1f} min (limit: {limit:.1f} s)"
    yield _result("stalls", longest > limit if enough else None, said)
    yield _latency([(turn, one) for _, turn, one in requests if not one.problem])


def _result(name: str, failed: bool | None, got: str) -> CheckResult:
    """`failed` is `None` if too little was measured."""
    hint = "restart the engine, and report it with `dflash-deploy logs`" if failed else ""
    status: CheckStatus = "skipped" if failed is None else "failed" if failed else "passed"
    return CheckResult(name, status, 0.0, "conversations of agents", got, hint)


def _latency(answered: Sequence[tuple[int, TimedCompletion]]) -> CheckResult:
    """Whether the last third of the answers is slower than the first one, turn by turn, by more than chance."""
    slower, said = False, []
    for name in ("ttft", "tpot"):
        of_turns = defaultdict[int, list[float]](list)
        times = [(turn, time) for turn, one in answered if (time := getattr(one, name))]
        for turn, seconds in times:
            of_turns[turn].append(seconds)
        ratios = [seconds / median(of_turns[turn]) for turn, seconds in times]
        if (third := len(ratios) // 3) < LEAST:
            return _result("latency", None, "too few answers to compare")
        (_, first, _), (least, last, _) = quantiles(ratios[:third]), quantiles(ratios[-third:])
        said.append(f"{name.upper()} {last / first:.2f} times")
        slower |= last > DRIFT * first and least > first
    return _result("latency", slower, f"at the end against the beginning: {', '.join(said)}")

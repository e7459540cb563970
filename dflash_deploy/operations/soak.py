"""`test --soak`: conversations of coding agents for some minutes, and samples of the engine under them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from threading import Event, Thread

from dflash_deploy.bench.agents import AgentLoad, shape_for
from dflash_deploy.bench.workload import Limits
from dflash_deploy.checks.check import CheckResult, takes_images
from dflash_deploy.checks.run import CheckReport
from dflash_deploy.checks.soak import MIB, SoakLoad, SoakRequest, SoakSample, soak_checks
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import START_IT, Endpoint, check_answering
from dflash_deploy.client.stream import TimedCompletion
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.host.gpu import read_gpus
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.restarts import refuse_other_ranks
from dflash_deploy.operations.test import Tested
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime.process import open_files
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.published import whole_endpoint

ANSWER = 128
"""Tokens of the longest answer."""

MOST_AGENTS = 8
"""Conversations at the same time: one more than the engine serves, so that a lost sequence is seen, up to this many."""

THINK_S = 0.2
"""Mean seconds between an answer and the next request."""

DEFAULT_CONTEXT = 8192
"""Tokens of the context if MAX_MODEL_LEN is not set."""

MOST_SAMPLES, SHORTEST_S = 600, 0.5
"""Samples of a load, and seconds between two."""

ALLOCATED = 1.1
"""Memory that a cache takes, by its size: llama.cpp b11549 grew by 1.06 times its prompt cache in 85 minutes."""

QUIET_S = 10.0
"""Seconds within which the engine must have ended all requests after the load."""

HOPELESS = 20
"""Failed requests in a row that end the load early."""


def soak(directory: Path, minutes: float, *, reporter: Reporter = SILENT) -> Tested:
    """Put the deployment under the load of `bench --agents` for `minutes`, and judge what it did to the engine.

    Raises NoDeployment, BadInput, SettingsRefused, EngineNotReady.
    """
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    with whole_endpoint(deployment, plan) as endpoint:
        check_answering(endpoint, hint=START_IT, redact=deployment.redact)
        load = _Soak(deployment, plan, endpoint, minutes * 60, reporter).run()
    checks = [_clean(check, deployment) for check in soak_checks(load)]
    for check in checks:
        reporter.checked(check)
    report = CheckReport(tuple(checks))
    return Tested(f"{endpoint.url}/v1", endpoint.model, deployment, report, deployment.redact, soak=load.samples)


def _clean(check: CheckResult, deployment: Deployment) -> CheckResult:
    return replace(check, got=deployment.redact(check.got))


class _Soak:
    """One load: a thread samples the engine while agents ask it."""

    def __init__(
        self, deployment: Deployment, plan: Plan, endpoint: Endpoint, seconds: float, reporter: Reporter
    ) -> None:
        self._plan, self._seconds, self._reporter = plan, seconds, reporter
        self._runtime = runtime_for(deployment, plan)
        served = (plan.settings.max_num_seqs or MOST_AGENTS) * plan.settings.data_parallel_size
        context = plan.settings.max_model_len or DEFAULT_CONTEXT
        shape = shape_for(context, None, min(ANSWER, context // 8), pictures=takes_images(plan))
        agents = min(served + 1, MOST_AGENTS)
        try:
            self._load = AgentLoad(endpoint, Limits(), self._runtime.memory, agents, replace(shape, think_s=THINK_S))
        except EndpointError as problem:
            raise EngineNotReady(deployment.redact(str(problem)), hint=START_IT) from None
        self._requests: list[SoakRequest] = []
        self._samples: list[SoakSample] = []
        self._failed, self._began = 0, 0.0

    def run(self) -> SoakLoad:
        self._reporter.note(
            f"{self._load.agents} agents for {self._seconds / 60:g} min, up to {self._load.shape.turns} turns and "
            f"{self._load.shape.context:,} tokens a conversation"
        )
        before, over = self._sample(), Event()
        self._began = time.perf_counter()
        watching = Thread(target=self._watch, args=(over,), daemon=True)
        watching.start()
        try:
            self._load.endless(f"soak {time.time_ns()}", self._heard)
        finally:
            over.set()
            watching.join()
        kind = self._plan.engine.kind
        return SoakLoad(
            before,
            self._samples,
            self._quiet(before),
            self._requests,
            drafting=self._plan.speculating and kind.counts_every_draft,
            caches=caches_of(self._plan),
        )

    def _heard(self, began: float, turn: int, answer: TimedCompletion) -> bool:
        """Keep a request; return whether the load is over."""
        self._requests.append(request_of(began - self._began, turn, answer))
        self._failed = self._failed + 1 if answer.problem else 0
        return time.perf_counter() - self._began >= self._seconds or self._failed >= HOPELESS

    def _watch(self, over: Event) -> None:
        pause = max(self._seconds / MOST_SAMPLES, SHORTEST_S)
        said = 0
        while not over.wait(pause):
            self._samples.append(self._sample())
            now = self._samples[-1]
            if now.seconds // 60 > said:
                said = int(now.seconds // 60)
                memory = "" if now.memory_bytes is None else f", {now.memory_bytes / MIB:,.0f} MiB"
                self._reporter.note(f"{now.seconds / 60:.0f} min: {len(self._requests)} requests{memory}")

    def _sample(self) -> SoakSample:
        counted, pids = self._load.read(), self._runtime.pids()
        used = [one.memory - one.free for one in read_gpus().gpus if one.memory is not None and one.free is not None]
        return SoakSample(
            seconds=round(time.perf_counter() - self._began, 3) if self._began else 0.0,
            memory_bytes=self._runtime.memory(),
            gpu_bytes=sum(used) if used else None,
            files=open_files(pids),
            processes=len(pids) or None,
            running=counted.running if counted else None,
            waiting=counted.waiting if counted else None,
            kv_cache=counted.cache if counted else None,
            generated=counted.generated_tokens if counted else None,
            drafts=counted.drafts.drafts if counted else None,
            load=round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
        )

    def _quiet(self, before: SoakSample) -> SoakSample:
        """The engine after the load, once no more requests run than before it, or QUIET_S are over."""
        end = time.monotonic() + QUIET_S
        while ((now := self._sample()).running or 0) > (before.running or 0) and time.monotonic() < end:
            time.sleep(SHORTEST_S)
        return now


def caches_of(plan: Plan) -> int:
    """Bytes of host memory by which the engines grow as their caches fill: of prompts, and of KV on a processor."""
    settings, kind = plan.settings, plan.engine.kind
    prompts = settings.prompt_cache_mib if kind.knows(Settings.prompt_cache_mib) else 0
    # its pages are taken as they are first used
    blocks = 1024 * (settings.vllm_cpu_kvcache_space or 0) if plan.engine.cpu else 0
    return int((prompts + blocks) * ALLOCATED * settings.data_parallel_size * MIB)


def request_of(began: float, turn: int, answer: TimedCompletion) -> SoakRequest:
    """What of a request counts; its longest silence may be the one before its first token."""
    silences = [answer.ttft, *answer.gaps]
    starts = [0.0, *accumulate(silences)]
    place = max(range(len(silences)), key=silences.__getitem__)
    return SoakRequest(began, turn, answer.ttft, answer.tpot, silences[place], began + starts[place], answer.problem)

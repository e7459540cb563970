"""`bench --agents`: conversations of coding agents, by turn and by context length."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from dflash_deploy import __version__
from dflash_deploy.bench.agent_figures import Stage, agent_verdicts, by_context, by_turn, with_baseline
from dflash_deploy.bench.agents import AgentLoad, Shape, TurnLoad, shape_for
from dflash_deploy.bench.figures import PARTS, Speculation
from dflash_deploy.bench.page import agents_page
from dflash_deploy.bench.workload import Limits
from dflash_deploy.checks.check import takes_images
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.files import check_output, write_output
from dflash_deploy.document import Count, Documented, Hidden, Keywords
from dflash_deploy.errors import BadInput, BenchmarkMissed, EngineNotReady
from dflash_deploy.operations.bench import LIMITS, BenchTarget, warn_of_waiting
from dflash_deploy.operations.document import SCHEMA
from dflash_deploy.operations.reporter import SILENT, Reporter

SEED = "agents"
"""The same texts in each run."""


@dataclass(frozen=True)
class AgentsMeasured(Documented):
    """What was measured, and how."""

    model: str
    """Name of the model in requests."""
    settings: Mapping[str, str]
    """The settings of `.env` that determine speed, by name; empty with `--url`."""
    at: str
    """When the measurement ended, such as `2026-11-22 15:04 UTC`."""
    version: str
    """Version of dflash-deploy."""
    agents: Annotated[int, Keywords(minimum=1)]
    """Conversations at the same time."""
    turns: Annotated[int, Keywords(minimum=2)]
    """Turns of each conversation."""
    context: Count
    """Tokens that a conversation grows to."""
    max_tokens: Count
    """Longest answer in tokens."""
    repeats: Annotated[int, Keywords(minimum=1)]
    """Repeats, each with texts of its own."""
    temperature: Annotated[float, Keywords(minimum=0)]
    """Temperature of sampling; 0 is greedy."""
    thinking: bool
    """Whether the model may think."""
    endpoint: str | None = None
    """URL of the endpoint, if it was named with `--url`."""
    profile: str | None = None
    """Name of the hardware profile. Missing with `--url`, as are pair, engine and runtime."""
    pair: str | None = None
    """Name of the model: a target with its drafter."""
    engine: str | None = None
    """Engine and its version."""
    runtime: str | None = None
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    baseline_url: str | None = None
    """URL of the endpoint that was measured without speculative decoding, if it was named with `--baseline-url`."""
    cores: Count | None = None
    """Processor cores of the engine, if several engines share those of the machine."""


@dataclass(frozen=True)
class AgentsBenchmark(Documented):
    """The result of `bench --agents`. `--save` writes the same `data`."""

    measured: AgentsMeasured
    """What was measured, and how."""
    turns: Sequence[Stage]
    """Figures of each turn, over all agents."""
    contexts: Sequence[Stage]
    """The same figures by the length of the prompt."""
    verdicts: Sequence[str]
    """What the figures mean, one line each."""
    failure: Hidden[BenchmarkMissed | None] = None
    """Why the run failed, if requests did."""


@dataclass(frozen=True)
class _Half:
    speculation: Speculation
    loads: list[list[TurnLoad]]


def bench_agents(
    target: BenchTarget,
    *,
    agents: int,
    turns: int | None = None,
    context: int | None = None,
    limits: Limits = LIMITS,
    repeats: int = 1,
    save: Path | None = None,
    report: Path | None = None,
    reporter: Reporter = SILENT,
) -> AgentsBenchmark:
    """Measure conversations of `agents` coding agents, which grow to `context` tokens in `turns`.

    Without `context` they grow to MAX_MODEL_LEN; without `turns` they have as many as fit, 20 at most. `save` writes
    the figures as JSON, `report` as one HTML page. Raises BadInput if the conversations do not fit, EngineNotReady.
    """
    for file in filter(None, (save, report)):
        check_output(file)
    known: list[Shape] = []

    def work(endpoint: Endpoint, speculation: Speculation) -> list[_Half]:
        if not known:
            longest = served_context(endpoint, target)
            warn_of_waiting(target.plan, agents, reporter)
            pictures = target.plan is not None and takes_images(target.plan)
            known.append(shape_for(_context(context, longest), turns, limits.max_tokens, pictures=pictures))
        try:
            load = AgentLoad(endpoint, agents, known[0], limits, target.memory)
        except EndpointError as problem:
            raise EngineNotReady(target.redact(str(problem)), hint="check the endpoint: dflash-deploy test") from None
        show = _shower(reporter, PARTS[speculation])
        return [_Half(speculation, [load.run(f"{SEED} {repeat}", show) for repeat in range(repeats)])]

    halves = target.each(work, reporter)
    shape = known[0]
    done = _benchmark(
        halves,
        AgentsMeasured(
            **target.description,  # type: ignore[arg-type]
            at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            version=__version__,
            agents=agents,
            turns=shape.turns,
            context=shape.context,
            max_tokens=limits.max_tokens,
            repeats=repeats,
            temperature=limits.temperature,
            thinking=limits.thinking,
        ),
        target,
    )
    if save:
        whole = {"schema": SCHEMA, "command": "bench", "data": done.document()}
        write_output(save, target.redact(json.dumps(whole, indent=2, ensure_ascii=False)) + "\n")
    if report:
        write_output(report, target.redact(agents_page(done.document())))
    return done


def _benchmark(halves: Sequence[_Half], measured: AgentsMeasured, target: BenchTarget) -> AgentsBenchmark:
    def stages(make: Any) -> list[Stage]:
        parts: dict[bool, list[Stage]] = {False: [], True: []}
        for half in halves:
            clean = [replace(one, problem=target.redact(one.problem)) for one in make(half.loads, half.speculation)]
            parts[half.speculation == "off"] += clean
        return with_baseline(parts[False], parts[True])

    turns, contexts = stages(by_turn), stages(by_context)
    failed = [one for one in turns if one.failed]
    failure = None
    if failed:
        count, asked = sum(one.failed for one in failed), sum(one.requests + one.failed for one in turns)
        failure = BenchmarkMissed(
            f"{count} of {asked} requests failed, the first in turn {failed[0].at}: {failed[0].problem}",
            hint="the other figures are of answered requests; `dflash-deploy logs` shows the engine's side",
        )
    return AgentsBenchmark(measured, turns, contexts, tuple(agent_verdicts(turns, contexts)), failure)


def served_context(endpoint: Endpoint, target: BenchTarget) -> int | None:
    """Tokens of the longest sequence: of the plan, else as the endpoint says; `None` if neither says it."""
    if target.plan is not None and (length := target.plan.settings.max_model_len) is not None:
        return length
    return next((one.max_model_len for one in endpoint.served() if one.max_model_len), None)


def _context(wanted: int | None, longest: int | None) -> int:
    if longest is None and wanted is None:
        raise BadInput("the endpoint does not report its context", hint="name it: --context TOKENS")
    if wanted is not None and longest is not None and wanted > longest:
        raise BadInput(
            f"a context of {wanted} tokens does not fit: the model has {longest}", hint=f"--context {longest} fits"
        )
    return wanted or longest or 0


def _shower(reporter: Reporter, part: str) -> Any:
    def show(one: TurnLoad) -> None:
        rates = [1 / request.tpot for request in one.requests if not request.problem and request.tpot]
        prompts = [request.prompt_tokens for request in one.requests if not request.problem]
        if prompts:
            rate = f", {sum(rates) / len(rates):.1f} tokens/s each" if rates else ""
            reporter.note(f"turn {one.turn}, {part}: prompts of up to {max(prompts)} tokens{rate}")

    return show

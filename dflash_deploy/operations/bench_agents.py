"""`bench --agents`: conversations of coding agents, by turn and by context length."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_deploy.bench.agent_figures import (
    STAGE_COLUMNS,
    STAGE_UNITS,
    Stage,
    agent_verdicts,
    by_context,
    by_turn,
    stage_cells,
    with_baseline,
)
from dflash_deploy.bench.agents import AgentLoad, AgentShape, TurnLoad, shape_for
from dflash_deploy.bench.figures import PARTS, Speculation
from dflash_deploy.bench.page import agents_page
from dflash_deploy.bench.workload import Limits
from dflash_deploy.checks.check import takes_images
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.files import check_output, write_output
from dflash_deploy.document import SCHEMA, as_document
from dflash_deploy.errors import BadInput, BenchmarkMissed, EngineNotReady
from dflash_deploy.operations.bench import LIMITS, BenchTarget, circumstances, warn_of_waiting
from dflash_deploy.operations.reporter import SILENT, Reporter

SEED = "agents"
"""The same texts in each run."""


@dataclass(frozen=True)
class AgentsBenchmark:
    """The figures of a run by turn and by context length, and what they mean. `failure` is set if requests failed."""

    measured: Mapping[str, object]
    turns: Sequence[Stage]
    contexts: Sequence[Stage]
    verdicts: Sequence[str]
    failure: BenchmarkMissed | None

    def document(self) -> dict[str, Any]:
        """The `data` of `bench --agents --json`."""
        return {
            "measured": self.measured,
            "turns": as_document(self.turns),
            "contexts": as_document(self.contexts),
            "verdicts": list(self.verdicts),
        }

    def tables(self) -> dict[str, tuple[Sequence[Stage], list[tuple[str, ...]]]]:
        """Stages and their cells by turn and by context."""
        places = {"turn": self.turns, "context": self.contexts}
        return {place: (stages, [*map(stage_cells, stages)]) for place, stages in places.items()}

    def page(self) -> str:
        """The report as HTML."""
        parts = {
            place: (as_document(rows), [(place, *STAGE_COLUMNS), *cells])
            for place, (rows, cells) in self.tables().items()
        }
        return agents_page(self.measured, (*self.verdicts, STAGE_UNITS), parts)


_Half = tuple[Speculation, list[list[TurnLoad]]]
"""How drafts were made, and the turns of each repeat."""


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
    known: list[AgentShape] = []

    def work(endpoint: Endpoint, speculation: Speculation) -> list[_Half]:
        if not known:
            longest = served_context(endpoint, target)
            warn_of_waiting(target.plan, agents, reporter)
            pictures = target.plan is not None and takes_images(target.plan)
            known.append(shape_for(_context(context, longest), turns, limits.max_tokens, pictures=pictures))
        load = AgentLoad(endpoint, limits, target.memory, agents, known[0])

        def show(one: TurnLoad) -> None:
            longest = max(request.prompt_tokens for request in one.requests)
            reporter.note(f"turn {one.turn}, {PARTS[speculation]}: prompts of up to {longest:,} tokens")

        return [(speculation, [load.run(f"{SEED} {repeat}", show) for repeat in range(repeats)])]

    def described() -> dict[str, object]:
        sizes = {"agents": agents, "turns": known[0].turns, "context": known[0].context}
        return {**circumstances(limits, repeats), **sizes}

    return _benchmark(target, work, described, (by_context, agent_verdicts), (save, report), reporter)


_ByContext = Callable[[Sequence[Sequence[TurnLoad]], Speculation], list[Stage]]
_Verdicts = Callable[[Sequence[Stage], Sequence[Stage]], Iterator[str]]


def _benchmark(
    target: BenchTarget,
    work: Callable[[Endpoint, Speculation], list[_Half]],
    described: Callable[[], dict[str, object]],
    means: tuple[_ByContext, _Verdicts],
    files: tuple[Path | None, Path | None],
    reporter: Reporter,
) -> AgentsBenchmark:
    """Measure, and write the figures to `files`: JSON and HTML. `means`: how figures and verdicts are made."""
    for file in filter(None, files):
        check_output(file)
    try:
        halves = target.each(work, reporter)
    except EndpointError as problem:
        raise EngineNotReady(target.redact(str(problem)), hint="check the endpoint: dflash-deploy test") from None
    done = _figures(halves, {**target.description, **described()}, target, means)
    save, report = files
    if save:
        whole = {"schema": SCHEMA, "command": "bench", "data": done.document()}
        write_output(save, target.redact(json.dumps(whole, indent=2, ensure_ascii=False)) + "\n")
    if report:
        write_output(report, target.redact(done.page()))
    return done


def _figures(
    halves: Sequence[_Half], measured: Mapping[str, object], target: BenchTarget, means: tuple[_ByContext, _Verdicts]
) -> AgentsBenchmark:
    def stages(make: _ByContext) -> list[Stage]:
        parts: dict[bool, list[Stage]] = {False: [], True: []}
        for speculation, loads in halves:
            clean = [replace(one, problem=target.redact(one.problem)) for one in make(loads, speculation)]
            parts[speculation == "off"] += clean
        return with_baseline(parts[False], parts[True])

    in_context, verdicts = means
    turns, contexts = stages(by_turn), stages(in_context)
    failed = [one for one in turns if one.failed]
    failure = None
    if failed:
        count, asked = sum(one.failed for one in failed), sum(one.requests + one.failed for one in turns)
        failure = BenchmarkMissed(
            f"{count} of {asked} requests failed, the first in turn {failed[0].at}: {failed[0].problem}",
            hint="the other figures are of answered requests; `dflash-deploy logs` shows the engine's side",
        )
    return AgentsBenchmark(measured, turns, contexts, tuple(verdicts(turns, contexts)), failure)


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

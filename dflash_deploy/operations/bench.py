"""`bench`: the speed of a deployment or any endpoint, by workload and concurrency, beside published figures.

The last run leaves its figures in the deployment; `bench --save` writes figures to a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from threading import Timer
from typing import Annotated, Any

from dflash_deploy import __version__
from dflash_deploy.bench.figures import Beside, Row, Speculation, as_counted, beside, missed
from dflash_deploy.bench.sweep import Sweep, run_sweep, with_speedups
from dflash_deploy.bench.workload import AGENTS, DescribedWorkload, Limits, choose, described
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import START_IT, Endpoint, served_names
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import check_output, write_output
from dflash_deploy.deployment.journal import engine_work, record
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.doctor.machine import conditions
from dflash_deploy.document import SCHEMA, Count, Documented, Hidden, Keywords, Positive
from dflash_deploy.errors import BadInput, BenchmarkMissed, EngineNotReady, NotPossible
from dflash_deploy.host.gpu import Gpu, read_gpus
from dflash_deploy.operations.addresses import address_of
from dflash_deploy.operations.figures import DESCRIBING, keep_figures
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.restarts import check_speculating, restarts, without_drafts
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Plan, RuntimeName
from dflash_deploy.planning import plan_of, plan_with
from dflash_deploy.redact import Redact, Redactor, Secret
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import MTP
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.engine import whole_endpoint

Work = Callable[[Endpoint, Speculation], list[Row]]  # measures an endpoint as it is, with drafts that are made so


@dataclass(frozen=True)
class BenchTarget:
    """What is measured: `deployed` and `remote` return one.

    `second` serves the same target without speculative decoding. Of an endpoint that another program runs there is
    neither deployment nor plan. `others` are plans to restart a deployment with, one after the other.
    """

    endpoint: Endpoint
    second: Endpoint | None
    redact: Redact
    description: Mapping[str, Any]
    deployment: Deployment | None = None
    plan: Plan | None = None
    others: tuple[Plan, ...] = ()
    patience: float = PATIENCE

    def each(self, work: Work, reporter: Reporter) -> list[Row]:
        """Do the work with and, if it was asked for, without speculative decoding. Raises EngineNotReady.

        A deployment is measured as it runs, then restarted with the other plans, and back to its own settings.
        """
        with ExitStack() as stack:
            if self.deployment is None or self.plan is None:
                endpoint = stack.enter_context(self.endpoint)
                rows = work(endpoint, "dflash" if self.second else "unknown")
            else:
                stack.enter_context(command_lock(self.deployment, "bench"))
                if self.others:
                    stack.enter_context(engine_work(self.deployment, "bench"))
                endpoint = stack.enter_context(self.endpoint)
                served_names(endpoint, hint=START_IT, redact=self.redact)
                rows = work(endpoint, speculation_of_plan(self.plan))
                if self.others:
                    rows += self._restarted(self.deployment, self.plan, work, reporter)
            return rows + (work(stack.enter_context(self.second), "off") if self.second else [])

    def _restarted(self, deployment: Deployment, plan: Plan, work: Work, reporter: Reporter) -> list[Row]:
        rows = []
        with restarts(deployment, plan, patience=self.patience, reporter=reporter) as restart_with:
            for other in self.others:
                restart_with(other)
                rows += work(self.endpoint, speculation_of_plan(other))
        record(deployment, "measured", "bench", "restarted the engine with other settings, then with .env")
        return rows


def deployed(
    directory: Path,
    *,
    baseline: bool = False,
    baseline_url: str | None = None,
    mtp: int | None = None,
    patience: float = PATIENCE,
) -> BenchTarget:
    """The deployment of a directory, as something to measure.

    `baseline` also measures it without speculative decoding, `mtp` with the target's MTP head and this many draft
    tokens: the engine restarts for each, and the program must then call from its main thread. `baseline_url` measures
    another endpoint instead. Raises NotPossible if the deployment has no drafter to leave out, or the target no head.
    """
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    if baseline and baseline_url is not None:
        raise BadInput("--baseline and --baseline-url exclude each other", hint="use one of them")
    if baseline or baseline_url is not None:
        check_speculating(plan)
    endpoint = whole_endpoint(deployment, plan)
    description, second = described_target(plan, endpoint.model), None
    if baseline_url is not None:
        description["baseline_url"] = address_of(baseline_url)
        second = Endpoint(address_of(baseline_url), deployment.key, endpoint.model, proxies=True)
        hint = "name an endpoint that serves the same model without a drafter"
        served_names(second, hint=hint, redact=deployment.redact)
    others = tuple(_others(deployment, plan, baseline=baseline, mtp=mtp))
    return BenchTarget(endpoint, second, deployment.redact, description, deployment, plan, others, patience)


def remote(url: str, key: Secret, model: str | None = None, *, baseline_url: str | None = None) -> BenchTarget:
    """Any endpoint by its URL, as something to measure; `model` is the served name, the first one if it is left out.

    Raises BadInput, and EngineNotReady if it does not answer.
    """
    places = [address_of(url), *([] if baseline_url is None else [address_of(baseline_url)])]
    endpoints = [Endpoint(place, key, model or "", proxies=True) for place in places]
    redact = Redactor([key])
    for endpoint in endpoints:
        hint = "check the URL and that --key-file holds its API key: curl -i URL/v1/models"
        names = served_names(endpoint, hint=hint, redact=redact)
        endpoint.model = model or names[0]
    description: dict[str, Any] = {"endpoint": places[0], "model": endpoints[0].model, "settings": {}}
    return BenchTarget(endpoints[0], endpoints[1] if len(endpoints) > 1 else None, redact, description)


def described_target(plan: Plan, model: str) -> dict[str, Any]:
    """What was measured of a deployment, for documents and reports."""
    return {
        "profile": plan.profile.name,
        "pair": plan.pair.name,
        "engine": f"{plan.engine.engine} {plan.engine_version}",
        "runtime": plan.runtime,
        "model": model,
        "settings": {field.name: plan.values[field.name] for field in DESCRIBING if plan.values.get(field.name)},
    }


def circumstances(limits: Limits, repeats: int) -> dict[str, Any]:
    """How a measurement that just ended was made."""
    return {
        "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "version": __version__,
        "max_tokens": limits.max_tokens,
        "temperature": limits.temperature,
        "thinking": limits.thinking,
        "repeats": repeats,
    }


def mtp_head(count: int) -> dict[str, str]:
    """The settings of this many draft tokens of the target's MTP head."""
    drafter, number, schedule = Settings.dflash_drafter, Settings.dflash_num_spec_tokens, Settings.dflash_spec_schedule
    return {drafter.name: MTP, number.name: str(count), schedule.name: ""}


def _others(deployment: Deployment, plan: Plan, *, baseline: bool, mtp: int | None) -> Iterator[Plan]:
    if mtp is not None:
        if plan.uses_mtp_head:
            raise NotPossible("this deployment uses the target's MTP head already", hint="leave out --mtp")
        other = plan_with(deployment, mtp_head(mtp))
        # refused before the engine is stopped
        engine_command(other)
        for finding in other.errors:
            raise NotPossible(finding.message, hint="leave out --mtp, or use weights of the target that have the head")
        yield other
    if baseline:
        yield without_drafts(deployment)


def speculation_of_plan(plan: Plan) -> Speculation:
    """How a deployment makes its drafts."""
    return "dflash" if plan.drafting else "mtp" if plan.uses_mtp_head else "off"


def _measured(target: BenchTarget, sweep: Sweep, reporter: Reporter) -> list[Row]:
    """All rows, without the key in an answer that repeats it."""

    asked: list[Sweep] = []

    def work(endpoint: Endpoint, speculation: Speculation) -> list[Row]:
        if not asked:
            # once, and only of an endpoint that answers
            _warn_of_waiting(target.plan, max(sweep.concurrency), reporter)
            asked.append(_within_context(sweep, endpoint, target))
        try:
            rows = run_sweep(endpoint, asked[0], speculation, show=lambda row: reporter.measured(row, ""))
        except EndpointError as problem:
            raise EngineNotReady(target.redact(str(problem)), hint="check the endpoint: `dflash-deploy test`") from None
        every = target.plan is None or target.plan.engine.kind.counts_every_draft
        return [replace(as_counted(row, counts_every_draft=every), problem=target.redact(row.problem)) for row in rows]

    rows = target.each(work, reporter)
    return with_speedups(*([row for row in rows if (row.speculation == "off") is off] for off in (False, True)))


def _warn_of_waiting(plan: Plan | None, concurrency: int, reporter: Reporter) -> None:
    """Say it if the engine serves fewer requests at the same time than are sent."""
    most = plan.settings.max_num_seqs if plan else None
    if plan and most and concurrency > (most := most * plan.settings.data_parallel_size):
        reporter.note(
            f"the engine answers {most} requests at the same time ({Settings.max_num_seqs}); further ones wait"
        )


def _within_context(sweep: Sweep, endpoint: Endpoint, target: BenchTarget) -> Sweep:
    """The sweep with the longest sequence, if it matters. Raises BadInput if conversations do not fit."""
    agents = any(one.name == AGENTS for one in sweep.workloads)
    if not sweep.context and not agents:
        return sweep
    longest = target.plan.settings.max_model_len if target.plan else None
    longest = longest or next((one.max_model_len for one in endpoint.served() if one.max_model_len), None)
    if longest is None and not sweep.context:
        raise BadInput("the endpoint does not report its context", hint="name it: --context TOKENS")
    if longest is not None and sweep.context > longest:
        raise BadInput(
            f"a context of {sweep.context} tokens does not fit: the model has {longest}",
            hint=f"--context {longest} fits",
        )
    return replace(sweep, longest=longest or sweep.context)


# Longest answer in tokens, greedy sampling, without thinking.
LIMITS = Limits(max_tokens=256, temperature=0.0, thinking=False)


@dataclass(frozen=True, kw_only=True)
class Measured(Documented):
    """What `bench` measured, and how."""

    endpoint: str | None = None
    """URL of the endpoint, if it was named with `--url`."""
    profile: str | None = None
    """Name of the hardware profile. Missing with `--url`, as are pair, engine and runtime."""
    pair: str | None = None
    """Name of the model: a target with its drafter."""
    engine: str | None = None
    """Engine and its version."""
    runtime: RuntimeName | None = None
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    model: str
    """Name of the model in requests."""
    settings: Mapping[str, str]
    """The settings of `.env` that determine speed, by name; empty with `--url`."""
    baseline_url: str | None = None
    """URL of the endpoint that was measured without speculative decoding, if it was named with `--baseline-url`."""
    at: str
    """When the measurement ended, such as `2026-11-22 15:04 UTC`."""
    version: str
    """Version of dflash-deploy."""
    max_tokens: Positive
    """Longest answer in tokens, unless a prompt has its own length."""
    temperature: Annotated[float, Keywords(minimum=0)]
    """Temperature of sampling; 0 is greedy."""
    thinking: bool
    """Whether the model may think."""
    repeats: Positive
    """Repeats of each measurement."""
    context: Count | None = None
    """Tokens of a conversation before each prompt."""


@dataclass(frozen=True)
class Benchmark(Documented):
    """The result of `bench`. `--save` writes the same `data`."""

    measured: Measured
    """What was measured, and how."""
    workloads: Sequence[DescribedWorkload]
    """The workloads."""
    rows: tuple[Row, ...]
    """One row for each workload, concurrency and way of decoding."""
    published: tuple[Beside, ...]
    """Published measurements for the same hardware and models; empty if the catalog has none to compare."""
    failure: Hidden[BenchmarkMissed | None]
    """Set if requests failed, drafts contradict the plan, or the speed-up is below the required one."""


def bench(
    target: BenchTarget,
    *,
    workloads: Sequence[str] = (),
    prompts: Path | None = None,
    concurrency: Sequence[int] = (1, 2, 4, 8),
    limits: Limits = LIMITS,
    requests: int | None = None,
    repeats: int = 1,
    context: int = 0,
    min_speedup: float | None = None,
    save: Path | None = None,
    report: Path | None = None,
    reporter: Reporter = SILENT,
) -> Benchmark:
    """Measure tokens/s, TTFT, TPOT, ITL and acceptance of a target, which `deployed` or `remote` returns.

    `workloads` are names as in docs/reference/bench.md, `prompts` a JSONL file of further ones. `requests` counts those
    of one repeat. Each prompt has `context` tokens of a conversation before it; conversations of agents grow to them.
    `save` writes the figures as JSON, `report` as one HTML page. Raises BadInput, EngineNotReady.
    """
    for file in (save, report):
        if file is not None:
            check_output(file)
    sweep = Sweep(
        workloads=tuple(choose(workloads, prompts, target.plan.pair if target.plan else None)),
        concurrency=tuple(sorted(set(concurrency))),
        limits=limits,
        repeats=repeats,
        requests=requests,
        context=context,
    )
    gpus: list[Gpu] = []
    reading = Timer(UNDER_LOAD, lambda: gpus.extend(read_gpus().gpus if target.plan else ()))
    reading.daemon = True
    reading.start()
    rows = _measured(target, sweep, reporter)
    reading.cancel()
    done = Benchmark(
        rows=tuple(rows),
        published=tuple(_published(target, rows, gpus)),
        failure=missed(rows, min_speedup, ours=target.plan is not None),
        measured=Measured(**target.description, **circumstances(limits, repeats), context=context),
        workloads=described(sweep.workloads),
    )
    saved = {"schema": SCHEMA, "command": "bench", "data": done.document()}
    text = target.redact(json.dumps(saved, indent=2, ensure_ascii=False)) + "\n"
    if save:
        write_output(save, text)
    if report:
        write_output(report, page(text))
    _keep(done, target, text, reporter)
    return done


UNDER_LOAD = 5.0  # seconds after the beginning of the measurement when the GPUs are read, once


def _published(target: BenchTarget, rows: Sequence[Row], gpus: Sequence[Gpu]) -> list[Beside]:
    if target.plan is None:
        return []
    condition = "; ".join(f"GPU {one.index}: {saw}" for one in gpus for _, saw, _ in conditions(one))
    place = (target.plan.profile.name, target.plan.pair.name)
    return beside([speed for speed in load_catalog().speeds if (speed.profile, speed.pair) == place], rows, condition)


def _keep(done: Benchmark, target: BenchTarget, text: str, reporter: Reporter) -> None:
    """Leave the figures in the deployment, unless requests failed or are turns of conversations.

    The run does not fail because they cannot be kept.
    """
    if target.deployment is None or any(row.failed or row.turn for row in done.rows):
        return
    elsewhere = "baseline_url" in target.description
    if elsewhere:
        reporter.note("without drafts another endpoint was measured: this deployment keeps its own baseline")
    try:
        baseline = not elsewhere and any(row.speculation == "off" for row in done.rows)
        keep_figures(target.deployment, text, baseline=baseline)
    except OSError as problem:
        reporter.note(f"the figures are not kept: {problem.strerror}")


PLACEHOLDER = "/* the document of `bench --save` */"


def page(document: str) -> str:
    """The report of a document of `bench --save`, as JSON."""
    template = (resources.files("dflash_deploy.bench") / "report.html").read_text(encoding="utf-8")
    # as text of a script the document could end it
    return template.replace(PLACEHOLDER, document.replace("<", "\\u003c"))

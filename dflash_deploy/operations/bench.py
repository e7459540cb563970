"""`bench`: the speed of a deployment or any endpoint, by workload and concurrency, beside published figures.

The last run leaves its figures in the deployment; `bench --save` writes figures to a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from dflash_deploy import __version__
from dflash_deploy.bench.figures import SIZES, Beside, Row, Speculation, as_counted, beside, missed
from dflash_deploy.bench.page import page
from dflash_deploy.bench.share import SharedMachine, SharedResult, machine_of
from dflash_deploy.bench.share import share as share_result
from dflash_deploy.bench.sweep import Sweep, run_sweep, with_speedups
from dflash_deploy.bench.workload import DescribedWorkload, Limits, choose, described
from dflash_deploy.catalog.load import Catalog, load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.client.endpoint import START_IT, Endpoint, served_names
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import LOCK_FILE, PRIVATE, check_output, write_atomically, write_output
from dflash_deploy.deployment.journal import record
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.document import SCHEMA, as_document
from dflash_deploy.errors import BadInput, BenchmarkMissed, FileRefused, NotPossible
from dflash_deploy.host.ask import image_id
from dflash_deploy.host.gpu import read_gpus
from dflash_deploy.intake.documents import BenchConditions, BenchFigures, BenchRow, BenchRun, parse_document, read_state
from dflash_deploy.intake.files import MIB, read_argument, shown
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.operations.addresses import address_of
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.restarts import check_speculating, restarts, without_drafts
from dflash_deploy.operations.work import MEASURING, engine_work
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of, plan_with
from dflash_deploy.redact import Redact, Redactor, Secret
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.engine import endpoint_of
from dflash_deploy.startup.published import whole_endpoint
from dflash_deploy.tuning.experiment import mtp_head
from dflash_deploy.weights.lock import Lock, read_lock

LARGEST_FIGURES = 16 * MIB

OF_PLAIN_SPEED = (
    # of one engine it is empty: a run over several measured none of them by itself
    Settings.data_parallel_size,
    Settings.tensor_parallel_size,
    Settings.nodes,
    Settings.distributed_executor,
    Settings.model_file,
    Settings.quantization,
    Settings.kv_cache_dtype,
    Settings.attention_backend,
    Settings.enforce_eager,
    Settings.omp_wait_policy,
    Settings.extra_args,
)
"""Settings that change the time of a token without drafts.

MAX_NUM_SEQS and MAX_NUM_BATCHED_TOKENS are not among them. They limit which requests run, and the time is kept by the
number of those that do: rows above the limit that was measured are left out (`rows_below_limit`). `tune` changes both.
"""

LAST_FIGURES, LAST_BASELINE = "bench.json", "bench-baseline.json"
"""In `.dflash/`: the figures of the last run, and of the last one that measured without speculative decoding."""


def keep_figures(deployment: Deployment, text: str, *, baseline: bool) -> None:
    """Keep the document of a run of `bench`, for `capacity`. Raises OSError if it cannot be written.

    `baseline`: it measured one engine of this deployment without speculative decoding too, which `monitor` compares
    with until the next such run.
    """
    for name in (LAST_FIGURES, LAST_BASELINE) if baseline else (LAST_FIGURES,):
        write_atomically(deployment.make_state() / name, text, mode=PRIVATE)


def last_figures(deployment: Deployment, name: str = LAST_FIGURES) -> BenchRun | None:
    """The figures of the last run; `None` if there was none, or its file was changed."""
    try:
        kept = read_state(deployment.state / name, BenchFigures, limit=LARGEST_FIGURES)
    except FileRefused:
        return None
    return None if kept is None else kept.data


def rows_below_limit(run: BenchRun) -> list[BenchRow]:
    """The rows of a run, less those with more clients than MAX_NUM_SEQS: they measured the wait."""
    written = run.measured.settings.get(Settings.max_num_seqs.name, "")
    most = int(written) if written.isdecimal() else None
    return [row for row in run.rows if most is None or row.concurrency <= most]


@dataclass(frozen=True)
class PlainSpeed:
    """How fast one engine of a deployment is without speculative decoding, as `bench` measured it.

    `tpot_seconds` has the mean time per output token by concurrency; empty if nothing is known. `unfit` says what the
    last figures measured instead; empty if they count, and if there are none.
    """

    tpot_seconds: Mapping[int, float]
    unfit: str = ""


def plain_speed(deployment: Deployment, plan: Plan) -> PlainSpeed:
    """The speed of the last run without drafts, if what it measured is what the plan runs."""
    last = last_figures(deployment, LAST_BASELINE) or last_figures(deployment)
    known = [
        (row.concurrency, row.requests, row.tpot_ms.mean / 1000)
        for row in (rows_below_limit(last) if last else ())
        if row.drafter is False and row.requests and row.tpot_ms and row.tpot_ms.mean
    ]
    if last is None or not known:
        return PlainSpeed({})
    unfit = measured_instead(last.measured, plan)
    return PlainSpeed({}, unfit) if unfit else PlainSpeed({at: _mean(known, at) for at, *_ in known})


def measured_instead(measured: BenchConditions, plan: Plan) -> str:
    """What the half of a run without drafts measured; empty if it is the engine of the plan, as the plan runs it."""
    if measured.baseline_url:
        return f"another endpoint, {measured.baseline_url}"
    here = (plan.profile.name, plan.pair.name, f"{plan.engine.engine} {plan.engine_version}")
    there = (measured.profile, measured.pair, measured.engine)
    named = [text for text, own in zip(there, here, strict=True) if text != own]
    named += [
        f"{field}={field.text(measured.settings) or '(empty)'}"
        for field in OF_PLAIN_SPEED
        if field.text(measured.settings) != field.text(plan.values)
    ]
    return ", ".join(named)


def _mean(known: Sequence[tuple[int, int, float]], concurrency: int) -> float:
    """The mean over the requests of all workloads at a concurrency."""
    here = [(requests, seconds) for at, requests, seconds in known if at == concurrency]
    return sum(requests * seconds for requests, seconds in here) / sum(requests for requests, _ in here)


def figures_in(path: Path) -> BenchRun:
    """The figures in a file. Raises BadInput if it is not one of `bench`."""
    hint = "name a file that `bench --save` wrote"
    try:
        return parse_document(read_argument(path, limit=LARGEST_FIGURES), BenchFigures, limit=LARGEST_FIGURES).data
    except FileRefused as problem:
        raise BadInput(f"{shown(path)} cannot be read: {problem.message}", hint=hint) from None
    except Invalid as problem:
        raise BadInput(f"{shown(path)} {problem}", hint=hint) from None


R = TypeVar("R")

Work = Callable[[Endpoint, Speculation], list[R]]
"""Measures an endpoint as it is, with drafts that are made so."""

DESCRIBING = (
    *SIZES,
    *OF_PLAIN_SPEED,
)
"""Settings that a figure means little without."""


class BenchTarget(Protocol):
    """What can be measured. `pair` and `plan` are `None` if nothing is known of the models behind the endpoint."""

    @property
    def pair(self) -> ModelPair | None:
        """Target and drafter, for workloads that ask what the model knows."""

    @property
    def plan(self) -> Plan | None:
        """The plan of the deployment."""

    @property
    def deployment(self) -> Deployment | None:
        """The deployment; `None` if another program runs the endpoint."""

    @property
    def redact(self) -> Redact:
        """Takes the API key out of text."""

    @property
    def description(self) -> Mapping[str, object]:
        """What was measured, for the report: model, endpoint, settings."""

    def each(self, work: Work[R], reporter: Reporter) -> list[R]:
        """Do the work with and, if it was asked for, without speculative decoding. Raises EngineNotReady."""

    def memory(self) -> int | None:
        """Bytes of host memory of the engine; `None` if unknown."""


@dataclass(frozen=True)
class Remote:
    """An endpoint that another program runs; `plain` is a second one, without speculative decoding."""

    endpoint: Endpoint
    plain: Endpoint | None
    redact: Redact
    description: Mapping[str, object]

    @property
    def pair(self) -> None:
        """The models are not known."""

    @property
    def plan(self) -> None:
        """It has no deployment."""

    @property
    def deployment(self) -> None:
        """It has no deployment."""

    def each(self, work: Work[R], reporter: Reporter) -> list[R]:
        """Both endpoints, one after the other."""
        with self.endpoint as endpoint:
            done = work(endpoint, "dflash" if self.plain else "unknown")
        return done + _second(self.plain, work)

    def memory(self) -> None:
        """Not known."""


@dataclass(frozen=True)
class Deployed:
    """The deployment of a directory. `others` are plans to restart it with, one after the other."""

    deployment: Deployment
    plan: Plan
    others: tuple[Plan, ...]
    second: Endpoint | None
    patience: float
    description: Mapping[str, object]

    @property
    def pair(self) -> ModelPair:
        """Target and drafter of the plan."""
        return self.plan.pair

    @property
    def redact(self) -> Redact:
        """Takes the secrets of `.env` out of text."""
        return self.deployment.redact

    def each(self, work: Work[R], reporter: Reporter) -> list[R]:
        """The engine as it runs, then restarted with the other plans, and back to its own settings."""
        with ExitStack() as stack:
            stack.enter_context(command_lock(self.deployment, "bench"))
            if self.others:
                # both halves without the requests of clients
                stack.enter_context(engine_work(self.deployment, "bench", reporter, MEASURING))
            endpoint = stack.enter_context(whole_endpoint(self.deployment, self.plan))
            served_names(endpoint, hint=START_IT, redact=self.redact)
            rows = work(endpoint, speculation_of_plan(self.plan))
            if self.others:
                with restarts(self.deployment, self.plan, patience=self.patience, reporter=reporter) as become:
                    for other in self.others:
                        become(other)
                        rows += work(endpoint, speculation_of_plan(other))
                record(self.deployment, "measured", "bench", "restarted the engine with other settings, then with .env")
            return rows + _second(self.second, work)

    def memory(self) -> int | None:
        """Bytes of host memory of the engine."""
        return runtime_for(self.deployment, self.plan).memory()


def deployed(
    directory: Path,
    *,
    baseline: bool = False,
    baseline_url: str | None = None,
    mtp: int | None = None,
    patience: float = PATIENCE,
) -> Deployed:
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
    with endpoint_of(deployment, plan) as endpoint:
        description = described_target(plan, endpoint.model)
    second = None
    if baseline_url is not None:
        description["baseline_url"] = address_of(baseline_url)
        second = Endpoint(address_of(baseline_url), deployment.key, endpoint.model, proxies=True)
        hint = "name an endpoint that serves the same model without a drafter"
        served_names(second, hint=hint, redact=deployment.redact)
    others = tuple(_others(deployment, plan, baseline=baseline, mtp=mtp))
    return Deployed(deployment, plan, others, second, patience, description)


def remote(url: str, key: Secret, model: str | None = None, *, baseline_url: str | None = None) -> Remote:
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
    description: dict[str, object] = {"endpoint": places[0], "model": endpoints[0].model, "settings": {}}
    return Remote(endpoints[0], endpoints[1] if len(endpoints) > 1 else None, redact, description)


def described_target(plan: Plan, model: str) -> dict[str, object]:
    """What was measured of a deployment, for documents and reports."""
    return {
        "profile": plan.profile.name,
        "pair": plan.pair.name,
        "engine": f"{plan.engine.engine} {plan.engine_version}",
        "runtime": plan.runtime,
        "model": model,
        "settings": {field.name: plan.values[field.name] for field in DESCRIBING if plan.values.get(field.name)},
    }


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


def _second(endpoint: Endpoint | None, work: Work[R]) -> list[R]:
    if endpoint is None:
        return []
    with endpoint:
        return work(endpoint, "off")


def _measured(target: BenchTarget, sweep: Sweep, reporter: Reporter) -> list[Row]:
    """All rows, without the key in an answer that repeats it."""

    warned: list[bool] = []

    def work(endpoint: Endpoint, speculation: Speculation) -> list[Row]:
        if not warned:
            # once, and only of an endpoint that answers
            warned.append(True)
            warn_of_waiting(target.plan, max(sweep.concurrency), reporter)
        rows = run_sweep(endpoint, sweep, speculation, show=lambda row: reporter.measured(row, ""))
        every = target.plan is None or target.plan.engine.kind.counts_every_draft
        return [replace(as_counted(row, counts_every_draft=every), problem=target.redact(row.problem)) for row in rows]

    rows = target.each(work, reporter)
    return with_speedups(*([row for row in rows if (row.speculation == "off") is off] for off in (False, True)))


def warn_of_waiting(plan: Plan | None, concurrency: int, reporter: Reporter) -> None:
    """Say it if an engine serves fewer requests at the same time than are sent."""
    most = plan.settings.max_num_seqs if plan else None
    if plan and most and concurrency > (most := most * plan.settings.data_parallel_size):
        reporter.note(
            f"the engine answers {most} requests at the same time ({Settings.max_num_seqs}); further ones wait"
        )


LIMITS = Limits(max_tokens=256, temperature=0.0, thinking=False)
"""Longest answer in tokens, greedy sampling, without thinking."""


@dataclass(frozen=True)
class Benchmark:
    """All rows of a run, and published figures for the same hardware and models.

    `failure` is set if requests failed, drafts contradict the plan, or the speed-up is below the required one.
    """

    rows: tuple[Row, ...]
    published: tuple[Beside, ...]
    failure: BenchmarkMissed | None
    measured: Mapping[str, object]
    workloads: Sequence[DescribedWorkload]

    def document(self) -> dict[str, object]:
        """The `data` of `bench --json`."""
        return {
            "measured": self.measured,
            "workloads": as_document(self.workloads),
            "rows": as_document(self.rows),
            "published": as_document(self.published),
        }


def bench(
    target: BenchTarget,
    *,
    workloads: Sequence[str] = (),
    prompts: Path | None = None,
    concurrency: Sequence[int] = (1, 2, 4, 8),
    limits: Limits = LIMITS,
    requests: int | None = None,
    repeats: int = 1,
    warmup: int | None = None,
    min_speedup: float | None = None,
    save: Path | None = None,
    share: Path | None = None,
    report: Path | None = None,
    reporter: Reporter = SILENT,
) -> Benchmark:
    """Measure tokens/s, TTFT, TPOT, ITL and acceptance of a target, which `deployed` or `remote` returns.

    `workloads` are names as in docs/reference/bench.md, `prompts` a JSONL file of further ones. `requests` counts those
    of one repeat. `save` writes the figures as JSON, `report` as one HTML page, `share` what can be published
    (`bench.share`). Raises BadInput, EngineNotReady.
    """
    for file in (save, share, report):
        if file is not None:
            check_output(file)
    sweep = Sweep(
        workloads=tuple(choose(workloads, prompts, target.pair)),
        concurrency=tuple(sorted(set(concurrency))),
        limits=limits,
        repeats=repeats,
        requests=requests,
        warmup=warmup,
    )
    rows = _measured(target, sweep, reporter)
    done = Benchmark(
        rows=tuple(rows),
        published=tuple(_published(target, rows)),
        failure=missed(rows, min_speedup, ours=target.plan is not None),
        measured={**target.description, **circumstances(limits, repeats)},
        workloads=described(sweep.workloads),
    )
    _write(done, target, save, report)
    if share:
        write_output(share, _share(done, target).text())
    _keep(done, target, reporter)
    return done


def circumstances(limits: Limits, repeats: int) -> dict[str, object]:
    """How a measurement that just ended was made."""
    return {
        "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "version": __version__,
        "max_tokens": limits.max_tokens,
        "temperature": limits.temperature,
        "thinking": limits.thinking,
        "repeats": repeats,
    }


def _published(target: BenchTarget, rows: Sequence[Row]) -> list[Beside]:
    if target.plan is None:
        return []
    place = (target.plan.profile.name, target.plan.pair.name)
    return beside([speed for speed in load_catalog().speeds if (speed.profile, speed.pair) == place], rows)


def _write(done: Benchmark, target: BenchTarget, save: Path | None, report: Path | None) -> None:
    if save:
        write_output(save, _saved(done, target))
    if report:
        write_output(report, target.redact(page(done.document())))


def _share(done: Benchmark, target: BenchTarget) -> SharedResult:
    """What can be published of a run. Another machine may run an endpoint by its URL: neither is described."""
    plan, deployment, known = target.plan, target.deployment, load_catalog()
    if plan is None or deployment is None:
        return shared(done, None, machine_of((), None), known)
    image = plan.settings.dflash_image if plan.runtime == "compose" else ""
    return shared(
        done,
        plan,
        machine_of(read_gpus().gpus, os.cpu_count()),
        known,
        image=image if "@sha256:" in image or not image else image_id(image),
        lock=read_lock(deployment.directory / LOCK_FILE),
    )


def shared(
    done: Benchmark,
    plan: Plan | None,
    machine: SharedMachine,
    catalog: Catalog,
    *,
    image: str = "",
    lock: Lock | None = None,
) -> SharedResult:
    """The public half of a run; `plan` is `None` for an endpoint without a deployment."""
    rows, named, values = [row.document() for row in done.rows], {}, {}
    if plan:
        named = {
            "profile": plan.profile.name,
            "model": plan.pair.name,
            "engine": plan.engine.name,
            "runtime": plan.runtime,
        }
        values = dict(plan.values)
    return share_result("bench", catalog, machine, named=named, values=values, image=image, lock=lock, rows=rows)


def _keep(done: Benchmark, target: BenchTarget, reporter: Reporter) -> None:
    """Leave the figures in the deployment, if no request failed. The run does not fail because they cannot be kept."""
    if target.deployment is None or any(row.failed for row in done.rows):
        return
    elsewhere = "baseline_url" in target.description
    if elsewhere:
        reporter.note("without drafts another endpoint was measured: this deployment keeps its own baseline")
    try:
        baseline = not elsewhere and any(row.speculation == "off" for row in done.rows)
        keep_figures(target.deployment, _saved(done, target), baseline=baseline)
    except OSError as problem:
        reporter.note(f"the figures are not kept for `capacity`: {problem.strerror}")


def _saved(done: Benchmark, target: BenchTarget) -> str:
    saved = {"schema": SCHEMA, "command": "bench", "data": done.document()}
    return target.redact(json.dumps(saved, indent=2, ensure_ascii=False)) + "\n"

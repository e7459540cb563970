"""What `bench` measures: the deployment of a directory, or any endpoint by its URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from dflash_deploy.bench.figures import Row, Speculation, as_counted
from dflash_deploy.bench.sweep import Sweep, run_sweep
from dflash_deploy.catalog import ModelPair
from dflash_deploy.client import START_IT, Endpoint, served_names
from dflash_deploy.deployment import Deployment, command_lock
from dflash_deploy.deployment.journal import record
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.operations.addresses import address_of
from dflash_deploy.operations.baselines import check_speculating, restarts, without_drafts
from dflash_deploy.operations.bench_figures import OF_PLAIN_SPEED
from dflash_deploy.operations.patience import PATIENCE
from dflash_deploy.operations.reporter import Reporter
from dflash_deploy.operations.silencing import MEASURING, silenced_work
from dflash_deploy.plan import Plan
from dflash_deploy.plan.command import engine_command
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import Redact, Redactor, Secret
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import endpoint_of
from dflash_deploy.startup.apart import plan_with, set_apart
from dflash_deploy.startup.known import follow
from dflash_deploy.startup.members import refuse_several, seen_as, whole_endpoint
from dflash_deploy.tuning.experiment import mtp_head

Halves = tuple[list[Row], list[Row]]
"""Rows with speculative decoding, and rows without."""

DESCRIBING = (
    Settings.dflash_num_spec_tokens,
    Settings.dflash_spec_schedule,
    Settings.max_model_len,
    Settings.max_num_seqs,
    Settings.max_num_batched_tokens,
    Settings.gpu_memory_utilization,
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

    def measure(self, sweep: Sweep, reporter: Reporter) -> Halves:
        """Measure it with and, if it was asked for, without speculative decoding. Raises EngineNotReady."""


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

    def measure(self, sweep: Sweep, reporter: Reporter) -> Halves:
        """Both endpoints, one after the other."""
        with self.endpoint as endpoint:
            drafted = run_sweep(endpoint, sweep, "dflash" if self.plain else "unknown", show=_shower(reporter))
        return _clean(drafted, self.redact), _clean(_second(self.plain, sweep, reporter), self.redact)


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

    def measure(self, sweep: Sweep, reporter: Reporter) -> Halves:
        """The engine as it runs, then restarted with the other plans, and back to its own settings."""
        with ExitStack() as stack:
            stack.enter_context(command_lock(self.deployment, "bench"))
            if self.others:
                # both halves without the requests of clients
                stack.enter_context(silenced_work(self.deployment, "bench", reporter, MEASURING))
                stack.enter_context(set_apart(self.deployment, reporter.note))
            endpoint = stack.enter_context(whole_endpoint(self.deployment, self.plan))
            served_names(endpoint, hint=START_IT, redact=self.redact)
            self._warn_of_waiting(sweep, reporter)
            rows = self._rows(endpoint, self.plan, sweep, reporter)
            if self.others:
                with restarts(self.deployment, self.plan, patience=self.patience, reporter=reporter) as become:
                    for other in self.others:
                        become(other)
                        follow(endpoint, self.deployment, self.plan)
                        rows += self._rows(endpoint, other, sweep, reporter)
                record(self.deployment, "measured", "bench", "restarted the engine with other settings, then with .env")
            rows += _second(self.second, sweep, reporter)
        return [row for row in rows if row.speculation != "off"], [row for row in rows if row.speculation == "off"]

    def _rows(self, endpoint: Endpoint, plan: Plan, sweep: Sweep, reporter: Reporter) -> list[Row]:
        show = _shower(reporter)
        rows = run_sweep(endpoint, sweep, speculation_of_plan(plan), show=show)
        return [as_counted(row, counts_every_draft=plan.engine.kind.counts_every_draft) for row in rows]

    def _warn_of_waiting(self, sweep: Sweep, reporter: Reporter) -> None:
        most = self.plan.settings.max_num_seqs
        if most is not None:
            most *= self.plan.settings.replicas
        if most is not None and max(sweep.concurrency) > most:
            reporter.note(
                f"the engine answers {most} requests at the same time ({Settings.max_num_seqs}); further ones wait"
            )


def deployed(
    directory: Path,
    *,
    replica: int | None = None,
    baseline: bool = False,
    baseline_url: str | None = None,
    mtp: int | None = None,
    patience: float = PATIENCE,
) -> Deployed:
    """The deployment of a directory, as something to measure.

    `baseline` also measures it without speculative decoding, `mtp` with the target's MTP head and this many draft
    tokens: the engine restarts for each, and the program must then call from its main thread. `baseline_url` measures
    another endpoint instead. `replica` measures only that one of several engines; if it restarts, the others get its
    requests. Raises NotPossible if the deployment has no drafter to leave out, the target no head, or several engines
    were to restart.
    """
    whole = Deployment.existing(directory)
    planned = plan_of(whole)
    deployment, plan = seen_as(whole, planned, replica)
    if baseline or mtp is not None:
        refuse_several(plan, "a comparison")
    if baseline and baseline_url is not None:
        raise BadInput("--baseline and --baseline-url exclude each other", hint="use one of them")
    if baseline or baseline_url is not None:
        check_speculating(plan)
    with endpoint_of(deployment, plan) as endpoint:
        description = described(plan, endpoint.model)
    if plan.settings.dflash_cores:
        description["cores"] = len(plan.settings.dflash_cores)
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


def described(plan: Plan, model: str) -> dict[str, object]:
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


def _second(endpoint: Endpoint | None, sweep: Sweep, reporter: Reporter) -> list[Row]:
    if endpoint is None:
        return []
    with endpoint:
        return run_sweep(endpoint, sweep, "off", show=_shower(reporter))


def _shower(reporter: Reporter) -> Callable[[Row], None]:
    return lambda row: reporter.measured(row, "")


def _clean(rows: list[Row], redact: Redact) -> list[Row]:
    """The rows, in which an answer that repeats the key is without it."""
    return [replace(row, problem=redact(row.problem)) for row in rows]

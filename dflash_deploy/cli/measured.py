"""What `bench` measures, and the files it leaves: a deployment, or an endpoint that somebody else runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.cli.remote import address_of, key_in
from dflash_deploy.cli.report import SCHEMA, note
from dflash_deploy.errors import BadInput, EngineNotReady, NotPossible

if TYPE_CHECKING:
    from dflash_deploy.bench.figures import Row
    from dflash_deploy.bench.published import Beside
    from dflash_deploy.bench.sweep import Sweep
    from dflash_deploy.catalog import ModelPair
    from dflash_deploy.client import Endpoint
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan
    from dflash_deploy.redact import Redactor

Show = Callable[["Row"], None]
Halves = tuple[list["Row"], list["Row"]]

TELLING = (
    "DFLASH_NUM_SPEC_TOKENS", "DFLASH_SPEC_SCHEDULE", "MAX_MODEL_LEN", "MAX_NUM_SEQS", "MAX_NUM_BATCHED_TOKENS",
    "KV_CACHE_DTYPE", "ATTENTION_BACKEND", "QUANTIZATION", "GPU_MEMORY_UTILIZATION", "EXTRA_ARGS",
)  # fmt: skip
"""Settings without which figures mean little."""


@dataclass
class Remote:
    """An endpoint that somebody else runs; `plain` is a second one, without the drafter that the first one has."""

    endpoint: Endpoint
    plain: Endpoint | None
    redact: Redactor
    told: dict[str, object]
    # nothing is known of its models
    pair: None = None
    plan: None = None

    def measure(self, sweep: Sweep, show: Show) -> Halves:
        """Both endpoints, one after the other."""
        from dflash_deploy.bench.sweep import run_sweep

        with self.endpoint as endpoint:
            drafted = run_sweep(endpoint, sweep, drafter=True if self.plain else None, show=show)
        # an answer that repeats the key is shown without it, here as everywhere
        return _clean(drafted, self.redact), _clean(_second(self.plain, sweep, show), self.redact)


@dataclass
class Deployed:
    """The deployment of a directory. `others` are the plans that it is to be restarted with, one after the other."""

    deployment: Deployment
    plan: Plan
    others: tuple[Plan, ...]
    second: Endpoint | None
    patience: float
    redact: Redactor
    told: dict[str, object]

    @property
    def pair(self) -> ModelPair:
        """The models of the plan."""
        return self.plan.pair

    def measure(self, sweep: Sweep, show: Show) -> Halves:
        """The engine as it is, then restarted with its MTP head and without any drafts, and back."""
        from dflash_deploy.cli.display import boot_display
        from dflash_deploy.deployment import hold
        from dflash_deploy.startup import endpoint_of, temporary_settings

        self._tell_of_waiting(sweep)
        with ExitStack() as stack:
            stack.enter_context(hold(self.deployment, "bench"))
            endpoint = stack.enter_context(endpoint_of(self.deployment, self.plan))
            check_answers(endpoint, hint="start it first: dflash-deploy up", redact=self.redact)
            rows = self._rows(endpoint, self.plan, sweep, show)
            if self.others:
                display = partial(boot_display, self.deployment.redact)
                with temporary_settings(self.deployment, self.plan, patience=self.patience, display=display) as become:
                    for other in self.others:
                        note(f"restarting the engine {_with_what(other)}")
                        become(other)
                        rows += self._rows(endpoint, other, sweep, show)
                    note(f"restarting it {_with_what(self.plan)}")
            rows += _second(self.second, sweep, show)
        return [row for row in rows if row.drafter], [row for row in rows if not row.drafter]

    def _rows(self, endpoint: Endpoint, plan: Plan, sweep: Sweep, show: Show) -> list[Row]:
        from dflash_deploy.bench.sweep import run_sweep

        rows = run_sweep(endpoint, sweep, drafter=plan.speculating, mtp=plan.uses_mtp_head, show=show)
        return [as_counted(row, plan.engine.engine) for row in rows]

    def _tell_of_waiting(self, sweep: Sweep) -> None:
        slots = self.plan.values.get("MAX_NUM_SEQS", "")
        if slots.isdigit() and max(sweep.concurrency) > int(slots):
            note(f"the engine answers {slots} requests at the same time (MAX_NUM_SEQS); of more streams some wait")


def _with_what(plan: Plan) -> str:
    return "with its drafter" if plan.drafting else "with its MTP head" if plan.uses_mtp_head else "without drafts"


def as_counted(row: Row, engine: str) -> Row:
    """The row, without the noughts that stand where an engine drafts and does not count it, as a fork may not.

    vLLM counts: where it made no draft, its nought says so.
    """
    if engine == "vllm" or not row.drafter or (row.counted is not None and row.counted.drafts):
        return row
    return replace(row, counted=None, draft_tokens=None)


def deployed(
    directory: Path, *, baseline: bool = False, baseline_url: str | None = None, mtp: int | None = None, patience: float
) -> Deployed:
    """The deployment of a directory. `mtp` are the draft tokens of the target's own head, which is to be measured too.

    Raises NotPossible for a baseline where there are no drafts to leave out, and for a head that is not there.
    """
    from dflash_deploy.cli.planned import plan_of
    from dflash_deploy.client import Endpoint
    from dflash_deploy.deployment import Deployment

    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    if baseline and baseline_url:
        raise BadInput("--baseline and --baseline-url are two ways to the same", hint="take one of them")
    if (baseline or baseline_url) and not plan.speculating:
        raise NotPossible(
            "this deployment decodes plainly: there is no drafter to compare with",
            hint="name the drafter in DFLASH_DRAFTER of .env, then `dflash-deploy up`",
        )
    told: dict[str, object] = {
        "profile": plan.profile.name,
        "pair": plan.pair.name,
        "engine": f"{plan.engine.engine} {plan.engine_version}",
        "runtime": plan.runtime,
        "model": _name(deployment, plan),
        "settings": {name: plan.values[name] for name in TELLING if plan.values.get(name)},
    }
    second = None
    if baseline_url:
        second = Endpoint(address_of(baseline_url), deployment.key, str(told["model"]), proxies=True)
    if second:
        hint = "name an endpoint that serves the same model without a drafter"
        check_answers(second, hint=hint, redact=deployment.redact)
    others = tuple(_others(deployment, plan, baseline=baseline, mtp=mtp))
    return Deployed(deployment, plan, others, second, patience, deployment.redact, told)


def _others(deployment: Deployment, plan: Plan, *, baseline: bool, mtp: int | None) -> Iterator[Plan]:
    from dflash_deploy.cli.planned import make_plan
    from dflash_deploy.plan import Choice
    from dflash_deploy.plan.command import engine_command

    if mtp is not None:
        if plan.uses_mtp_head:
            raise NotPossible("this deployment has the target's own MTP head already", hint="leave --mtp out")
        head = {"DFLASH_DRAFTER": "mtp", "DFLASH_NUM_SPEC_TOKENS": str(mtp), "DFLASH_SPEC_SCHEDULE": ""}
        other = make_plan(Choice(edited={**deployment.values, **head}), deployment)
        # what cannot be is better said before the engine is stopped for it
        engine_command(other)
        for finding in other.errors:
            raise NotPossible(finding.message, hint="leave --mtp out, or take a form of the target that kept its head")
        yield other
    if baseline:
        yield make_plan(Choice(edited={**deployment.values, "DFLASH_DRAFTER": "off"}), deployment)


def _name(deployment: Deployment, plan: Plan) -> str:
    from dflash_deploy.startup import endpoint_of

    with endpoint_of(deployment, plan) as endpoint:
        return endpoint.model


def remote(url: str, key_file: Path | None, model: str | None, *, baseline_url: str | None) -> Remote:
    """An endpoint without a deployment. Raises BadInput for a key that cannot be read, EngineNotReady for silence."""
    from dflash_deploy.client import Endpoint
    from dflash_deploy.redact import Redactor

    key = key_in(key_file)
    places = [address_of(place) for place in (url, baseline_url) if place]
    endpoints = [Endpoint(place, key, model or "", proxies=True) for place in places]
    redact = Redactor([key])
    for endpoint in endpoints:
        hint = "is this the address, and --key-file the key? curl -i URL/v1/models"
        names = check_answers(endpoint, hint=hint, redact=redact)
        endpoint.model = model or names[0]
    told: dict[str, object] = {"endpoint": places[0], "model": endpoints[0].model, "settings": {}}
    return Remote(endpoints[0], endpoints[1] if len(endpoints) > 1 else None, redact, told)


def check_answers(endpoint: Endpoint, *, hint: str, redact: Redactor) -> list[str]:
    """The names that an endpoint serves. Raises EngineNotReady where it does not say, or not the one that is asked."""
    from dflash_deploy.client import EndpointError

    try:
        names = endpoint.models()
    except EndpointError as problem:
        raise EngineNotReady(redact(f"{endpoint.url} does not answer: {problem}"), hint=hint) from None
    if not names or (endpoint.model and endpoint.model not in names):
        raise EngineNotReady(
            f"{endpoint.url} does not serve {endpoint.model or 'any model'}", hint=f"it serves: {', '.join(names)}"
        )
    return names


def _second(endpoint: Endpoint | None, sweep: Sweep, show: Show) -> list[Row]:
    from dflash_deploy.bench.sweep import run_sweep

    if endpoint is None:
        return []
    with endpoint:
        return run_sweep(endpoint, sweep, drafter=False, show=show)


def _clean(rows: list[Row], redact: Redactor) -> list[Row]:
    return [replace(row, problem=redact(row.problem)) for row in rows]


def finished(
    subject: Remote | Deployed, sweep: Sweep, rows: Sequence[Row], *, save: Path | None, report: Path | None
) -> tuple[dict[str, object], list[Beside]]:
    """The document of a run, written where it was asked for, and the published figures that it is compared with."""
    from dflash_deploy import __version__
    from dflash_deploy.bench.page import page
    from dflash_deploy.bench.published import beside
    from dflash_deploy.bench.workload import described
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.deployment.files import PUBLIC, write_atomically

    besides: list[Beside] = []
    if subject.plan is not None:
        place = (subject.plan.profile.name, subject.plan.pair.name)
        besides = beside([speed for speed in load_catalog().speeds if (speed.profile, speed.pair) == place], rows)
    measured = subject.told | {
        "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "version": __version__,
        "max_tokens": sweep.limits.max_tokens,
        "temperature": sweep.limits.temperature,
        "thinking": sweep.limits.thinking,
        "repeats": sweep.repeats,
    }
    data: dict[str, object] = {
        "measured": measured,
        "workloads": described(sweep.workloads),
        "rows": [row.document() for row in rows],
        "published": [row.document() for row in besides],
    }
    saved = {"schema": SCHEMA, "command": "bench", "data": data}
    if save:
        write_atomically(save, subject.redact(json.dumps(saved, indent=2, ensure_ascii=False)) + "\n", mode=PUBLIC)
    if report:
        write_atomically(report, subject.redact(page(data)), mode=PUBLIC)
    return data, besides

"""`up`: start the deployment and wait for its first answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import Patience, make_plan, plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, JsonStream, Report, note, verb
from dflash_deploy.cli.starting import Start, Started

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dflash_deploy.deployment import Deployment
    from dflash_deploy.errors import EngineNotReady
    from dflash_deploy.plan import Plan
    from dflash_deploy.startup import Ready


@verb
def up(
    directory: Directory = HERE,
    patience: Patience = 900,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Where it fails for a known reason with a safe cure, write that into .env, once."),
    ] = False,
    as_json: Json = False,
    json_stream: JsonStream = False,
) -> Report:
    """Start the engine, follow it while it loads, and end with a real answer."""
    from dflash_deploy.deployment import Deployment, hold
    from dflash_deploy.deployment.last_good import changes
    from dflash_deploy.errors import EngineNotReady

    deployment, start = Deployment.existing(directory), Start(patience, json_stream)
    with hold(deployment, "up"):
        plan = _with_weights(deployment)
        for change in changes(deployment):
            note(f"changed since it answered last: {change}")
        answers = plan.settings.answers_requests
        try:
            if not answers:
                return _joined(plan, changed=start.join(deployment, plan))
            return _report(deployment, plan, start.and_check(deployment, plan), fixed={})
        except EngineNotReady as problem:
            # what is changed on one of several machines has to be changed on all
            cures = _safe_changes(deployment, plan, problem) if answers else {}
            if not fix or not cures:
                return _failed(start.gone_back(deployment, problem), cures, asked=fix)
            return _once_more(deployment, problem, cures, start)


def _with_weights(deployment: Deployment) -> Plan:
    """The plan, after missing weights were fetched: what they say of themselves may change it."""
    from dflash_deploy.cli.pull import bring
    from dflash_deploy.errors import WeightsMissing
    from dflash_deploy.runtime import runtime_for
    from dflash_deploy.startup import preflight
    from dflash_deploy.weights.pull import orders

    plan = plan_of(deployment)
    try:
        # whether this machine is to answer is asked where it is started
        preflight(deployment, plan, runtime_for(deployment, plan), joining=True)
    except WeightsMissing:
        if not orders(deployment, plan):
            raise
        note("weights are missing: fetching them, as `dflash-deploy pull` does")
        bring(deployment)
        return plan_of(deployment)
    return plan


def _joined(plan: Plan, *, changed: bool) -> Report:
    rank, master = plan.values["NODE_RANK"], plan.values.get("MASTER_ADDR", "")
    data = {"rank": int(rank), "master": master, "state": "running", "runtime": plan.runtime, "changed": changed}
    shown = (
        f"rank {rank} runs and waits for rank 0 at {master}; it answers nobody itself",
        "next      dflash-deploy up      on rank 0, which waits for both and answers",
        "          dflash-deploy logs    what it does meanwhile",
    )
    return Report(data, shown)


def _safe_changes(deployment: Deployment, plan: Plan, problem: EngineNotReady) -> dict[str, str]:
    """What may be written to mend it; nothing where the plan that comes of it would be refused."""
    from dflash_deploy.errors import DeployError
    from dflash_deploy.plan import Choice
    from dflash_deploy.startup import fix_changes

    changes = fix_changes(problem.fix, plan)
    if not changes:
        return {}
    try:
        then = make_plan(Choice(edited={**deployment.values, **changes}), deployment)
    except DeployError:
        return {}
    return {} if then.errors else changes


def _failed(problem: EngineNotReady, changes: Mapping[str, str], *, asked: bool) -> Report:
    """The failure, and what `--fix` would have done or why it did nothing."""
    if changes:
        written = " ".join(f"{name}={value}" for name, value in changes.items())
        problem.hint = f"{problem.hint}; `dflash-deploy up --fix` writes {written} and tries once more"
    elif asked:
        problem.hint = f"{problem.hint}; --fix knows no safe change for it, and .env is as it was"
    return Report(_diagnosis(problem), failure=problem)


def _once_more(deployment: Deployment, problem: EngineNotReady, changes: Mapping[str, str], start: Start) -> Report:
    """Write the changes, show them, and try once more; what fails then is reported and not mended again."""
    from dflash_deploy.errors import EngineNotReady
    from dflash_deploy.startup import apply_fix

    note(deployment.redact(f"failed: {problem.message}"))
    deployment, lines = apply_fix(deployment, changes)
    for line in lines:
        note(line)
    plan = plan_of(deployment)
    fixed = {"failure": problem.failure, "changes": dict(changes), "before": str(deployment.last_env_file)}
    try:
        return _report(deployment, plan, start.and_check(deployment, plan), fixed)
    except EngineNotReady as again:
        again = start.gone_back(deployment, again)
        again.hint = f"{again.hint}; --fix has changed {', '.join(changes)}: .env.last is the file before"
        return Report(_diagnosis(again) | {"fixed": fixed}, failure=again)


def _diagnosis(problem: EngineNotReady) -> dict[str, object]:
    return {"failure": problem.failure or None, "fix": problem.fix, "evidence": problem.detail.splitlines()}


def _report(deployment: Deployment, plan: Plan, started: Started, fixed: Mapping[str, object]) -> Report:
    ready = started.ready
    data = {
        "endpoint": f"{ready.endpoint}/v1",
        "model": ready.model,
        "runtime": ready.runtime,
        "state": "ready",
        "changed": ready.changed,
        "seconds": round(ready.seconds, 1),
        "fixed": fixed or None,
        "tokens_per_second": ready.tokens_per_second and round(ready.tokens_per_second, 1),
        "acceptance_length": ready.acceptance_length and round(ready.acceptance_length, 2),
        "checks": started.checks.rows(deployment.redact),
    }
    said = f"ready after {ready.seconds:.0f} s" if ready.changed else "was ready already; nothing changed"
    shown = (
        said,
        f"endpoint  {ready.endpoint}/v1",
        f"model     {ready.model}",
        f"key       VLLM_API_KEY in {deployment.env_file}",
        *([f"fixed     {fixed['failure']}; .env as it was: {deployment.last_env_file}"] if fixed else []),
        f"asked     {plan.pair.text.ask}",
        f"answered  {ready.first_answer.text.strip()}",
        *_speed(ready),
        f"checked   {started.said}",
        "next      dflash-deploy test     prove it: streams, limits, load, drafts",
        "          dflash-deploy status   what is true now",
        "          dflash-deploy down     stop it; weights and settings stay",
    )
    findings = tuple(finding for finding in plan.findings if finding.severity != "note")
    return Report(data, shown, findings, started.failure)


def _speed(ready: Ready) -> tuple[str, ...]:
    if ready.tokens_per_second is None:
        return ()
    drafts = f", acceptance length {ready.acceptance_length:.1f}" if ready.acceptance_length else ""
    return (f"speed     {ready.tokens_per_second:.0f} tokens/s on one short answer{drafts}",)

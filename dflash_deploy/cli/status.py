"""`status`: what is true of the deployment now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, Report, verb

if TYPE_CHECKING:
    from dflash_deploy.plan import Plan
    from dflash_deploy.project import Deployment
    from dflash_deploy.runtime import EngineState, Runtime

PROBE_TIMEOUT = 30.0
"""Seconds for one generation; an engine that hangs answers /health and nothing else."""

_STARTS = "`dflash-deploy up` brings it back"

STOPPED = frozenset({0, 143, -15})
"""Exit codes of an engine that was asked to end: by itself, or by SIGTERM."""


@verb
def status(
    directory: Directory = HERE,
    every: Annotated[
        float | None, typer.Option("--watch", min=1, help="A line every so many seconds instead, until Ctrl-C.")
    ] = None,
    looks: Annotated[int | None, typer.Option(min=1, help="End --watch after so many lines.")] = None,
    as_json: Json = False,
) -> Report:
    """Say whether the engine really answers: its process, one generation, and the drafts since it started."""
    from dflash_deploy.cli.watch import watch
    from dflash_deploy.errors import BadInput
    from dflash_deploy.project import Deployment
    from dflash_deploy.project.last_good import instead_since
    from dflash_deploy.runtime import runtime_for

    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    if every is not None:
        if as_json:
            raise BadInput("--watch writes lines and no document", hint="leave one out: `status --json` in a loop")
        watch(deployment, plan, every, looks)
        return Report()
    runtime = runtime_for(deployment, plan)
    engine = runtime.state()
    data = _probe(deployment, plan, engine)
    data |= {"runtime": plan.runtime, "exit_code": engine.exit_code, "restarts": engine.restarts}
    data |= _why(plan, runtime, engine, loading=data["state"] == "starting")
    if engine.alive and (instead := instead_since(deployment)):
        data["instead"] = f"the settings that worked last, not those of .env, since {instead}"
    if data["state"] == "ready":
        # docs/failures.md says what each of them means
        data["costs"] = _costs(plan, runtime)
    shown = tuple(f"{name:18} {value}" for name, value in data.items() if value is not None)
    return Report(data, shown)


def _probe(deployment: Deployment, plan: Plan, engine: EngineState) -> dict[str, object]:
    """State in one word: absent, exited, restarting, paused, cut off, starting, ready or unresponsive."""
    from dflash_deploy.boot import endpoint_of
    from dflash_deploy.client import EndpointError

    with endpoint_of(deployment, plan, timeout=PROBE_TIMEOUT) as endpoint:
        data: dict[str, object] = {"endpoint": f"{endpoint.url}/v1", "model": endpoint.model, "state": engine.phase}
        if engine.phase == "paused":
            return data | {"cause": "its container is paused", "do": _STARTS}
        if engine.phase != "running":
            return data
        if not engine.connected:
            return data | {"state": "cut off", "cause": "its container was taken off its network", "do": _STARTS}
        if not endpoint.alive():
            return data | {"state": "starting"}
        try:
            answer = endpoint.chat(plan.pair.text.ask, max_tokens=8)
            length = endpoint.counters().acceptance_length
        except EndpointError as problem:
            return data | {"state": "unresponsive", "problem": str(problem)}
        return data | {
            "state": "ready",
            "seconds": round(answer.seconds, 2),
            "acceptance_length": length and round(length, 2),
        }


def _why(plan: Plan, runtime: Runtime, engine: EngineState, *, loading: bool) -> dict[str, object]:
    """Cause and cure, where the engine has ended or keeps ending and its log says why. A wanted end has none.

    One that is `loading` after its runtime brought it back has ended, too, and its log goes on behind that.
    """
    from dflash_deploy.boot import Ending, reader_of

    wanted = engine.exit_code in STOPPED and not engine.unasked
    ended = engine.phase in {"exited", "restarting"} and not wanted
    if not ended and not (loading and engine.restarts):
        return {}
    # an engine that came back by itself last week is in no loop
    restarts = engine.restarts if engine.phase == "restarting" else 0
    ending = Ending(engine.exit_code, engine.out_of_memory, restarts)
    findings = reader_of(plan).read(runtime.read_log().lines, ending)
    known = findings.diagnosis
    return {} if known is None else {"failure": known.id, "cause": known.cause, "do": known.do}


def _costs(plan: Plan, runtime: Runtime) -> str | None:
    """The fingerprints that the log of an engine that answers fits, and that cost it something."""
    from dflash_deploy.boot import reader_of

    return ", ".join(known.id for known in reader_of(plan).costs(runtime.read_log().lines)) or None

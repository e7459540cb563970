"""`status`: what is true of the deployment now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, Report, verb

if TYPE_CHECKING:
    from dflash_deploy.client import Endpoint
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan
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
        float | None, typer.Option("--watch", min=1, help="Look every so many seconds instead, until Ctrl-C.")
    ] = None,
    looks: Annotated[int | None, typer.Option(min=1, help="End --watch after so many looks.")] = None,
    as_json: Json = False,
) -> Report:
    """Say whether the engine really answers: its process, one generation, and the drafts since it started."""
    from dflash_deploy.cli.watch import watch
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.deployment.last_good import restored_since
    from dflash_deploy.errors import BadInput
    from dflash_deploy.runtime import runtime_for

    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    if every is not None:
        if as_json:
            raise BadInput("--watch has no document", hint="leave one out: `status --json` in a loop")
        watch(deployment, plan, every, looks)
        return Report()
    runtime = runtime_for(deployment, plan)
    engine = runtime.state()
    data = _probe(deployment, plan, engine)
    data |= {"runtime": plan.runtime, "engine": engine.identity or None, "exit_code": engine.exit_code}
    data |= {"restarts": engine.restarts, "memory_gib": _gib(runtime.memory()), "gpu_memory_gib": _gpu_memory()}
    data |= _why(plan, runtime, engine, loading=data["state"] == "starting")
    if engine.alive and (instead := restored_since(deployment)):
        data["instead"] = f"the settings that worked last, not those of .env, since {instead}"
    if data["state"] == "ready":
        # docs/failures.md says what each of them means
        data["costs"] = _costs(plan, runtime)
    shown = tuple(f"{name:18} {value}" for name, value in data.items() if value is not None)
    return Report(data, shown)


def _probe(deployment: Deployment, plan: Plan, engine: EngineState) -> dict[str, object]:
    """State in one word: absent, exited, restarting, paused, cut off, running, starting, ready or unresponsive."""
    from dflash_deploy.startup import endpoint_of

    with endpoint_of(deployment, plan, timeout=PROBE_TIMEOUT) as endpoint:
        data: dict[str, object] = {"endpoint": f"{endpoint.url}/v1", "model": endpoint.model, "state": engine.phase}
        return data | (_out_of_reach(plan, engine) or _asked(endpoint, plan.pair.text.ask))


def _out_of_reach(plan: Plan, engine: EngineState) -> dict[str, object]:
    """Why nothing is asked of it; empty where it can be."""

    if engine.phase == "paused":
        return {"cause": "its container is paused", "do": _STARTS}
    if engine.phase != "running":
        return {"state": engine.phase}
    if not engine.connected:
        return {"state": "cut off", "cause": "its container was taken off its network", "do": _STARTS}
    if not plan.settings.answers_requests:
        return {"rank": int(plan.values["NODE_RANK"]), "do": "ask rank 0: this one answers nobody"}
    return {}


def _asked(endpoint: Endpoint, question: str) -> dict[str, object]:
    """What came of one generation."""
    from dflash_deploy.client import EndpointError

    if not endpoint.alive():
        return {"state": "starting"}
    try:
        answer = endpoint.chat(question, max_tokens=8)
        length = endpoint.counters().acceptance_length
    except EndpointError as problem:
        return {"state": "unresponsive", "problem": str(problem)}
    return {"state": "ready", "seconds": round(answer.seconds, 2), "acceptance_length": length and round(length, 2)}


def _gpu_memory() -> str | None:
    """Used of all, GPU by GPU, whoever uses it; `None` without one, or where the system's memory is the GPU's."""
    from dflash_deploy.host.gpu import read_gpus

    said = [
        f"{_gib(gpu.memory - gpu.free)} of {_gib(gpu.memory)}"
        for gpu in read_gpus().gpus
        if gpu.memory is not None and gpu.free is not None
    ]
    return ", ".join(said) or None


def _gib(size: int | None) -> float | None:
    return None if size is None else round(size / 2**30, 1)


def _why(plan: Plan, runtime: Runtime, engine: EngineState, *, loading: bool) -> dict[str, object]:
    """Cause and cure, where the engine has ended or keeps ending and its log says why. A wanted end has none.

    One that is `loading` after its runtime brought it back has ended, too, and its log goes on behind that.
    """
    from dflash_deploy.startup import ProcessEnd, log_reader_for

    wanted = engine.exit_code in STOPPED and not engine.unasked
    ended = engine.phase in {"exited", "restarting"} and not wanted
    if not ended and not (loading and engine.restarts):
        return {}
    # an engine that came back by itself last week is in no loop
    restarts = engine.restarts if engine.phase == "restarting" else 0
    ending = ProcessEnd(engine.exit_code, engine.out_of_memory, restarts)
    findings = log_reader_for(plan).read(runtime.read_log().lines, ending)
    known = findings.diagnosis
    return {} if known is None else {"failure": known.id, "cause": known.cause, "do": known.do}


def _costs(plan: Plan, runtime: Runtime) -> str | None:
    """The fingerprints that the log of an engine that answers fits, and that cost it something."""
    from dflash_deploy.startup import log_reader_for

    return ", ".join(known.id for known in log_reader_for(plan).costs(runtime.read_log().lines)) or None

"""`up`: refuse early, start, wait for the first answer, and say what came of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from dflash_deploy.boot.diagnosis import Reader
from dflash_deploy.boot.phases import Phases, Step
from dflash_deploy.boot.timekeeper import Progress, Show, Timekeeper, remember_seconds, usual_seconds
from dflash_deploy.boot.wait import Waiting, explained
from dflash_deploy.catalog import load_catalog
from dflash_deploy.client import Answer, Endpoint, EndpointError
from dflash_deploy.errors import EngineNotReady, PortTaken, PreflightRefused, SettingsRefused
from dflash_deploy.host import is_address_here, listener_on
from dflash_deploy.plan import Plan
from dflash_deploy.plan.command import drafter_host_path, engine_command, engine_environment
from dflash_deploy.project import Deployment
from dflash_deploy.runtime import Runtime
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.weights import check_weights

WARM_UP_TOKENS = 64


@dataclass(frozen=True)
class Ready:
    """A deployment that has answered. `changed` is false where it ran already with these settings.

    `tokens_per_second` and `acceptance_length` are those of one more short answer; `None` where it was not counted.
    """

    endpoint: str
    model: str
    runtime: str
    changed: bool
    seconds: float
    first_answer: Answer
    tokens_per_second: float | None = None
    acceptance_length: float | None = None


def endpoint_of(deployment: Deployment, plan: Plan, *, timeout: float | None = None) -> Endpoint:
    """The endpoint of a deployment, as reached from this machine."""
    host, port = plan.values["DFLASH_BIND"], plan.values["DFLASH_PORT"]
    # an address that means "all of them" is listened on, not called
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    if ":" in reachable:
        reachable = f"[{reachable}]"
    unnamed = engine_environment(plan.values, plan.runtime)["MODEL_PATH"]
    model = (plan.values["SERVED_MODEL_NAME"].split() or [unnamed])[0]
    url = f"http://{reachable}:{port}"
    return Endpoint(url, deployment.key, model, timeout=timeout) if timeout else Endpoint(url, deployment.key, model)


def reader_of(plan: Plan) -> Reader:
    """What reads the log of a plan's engine, with all that the catalog knows of its failures."""
    return Reader(load_catalog().failures, plan.engine.engine, plan.engine_version)


def bring_up(deployment: Deployment, plan: Plan, runtime: Runtime, *, patience: float, show: Show) -> Ready:
    """Start the deployment and wait for a real generation.

    Raises PreflightRefused before anything is started, EngineNotReady after; then the engine is stopped, its log kept.
    """
    preflight(deployment, plan, runtime)
    times = Timekeeper(show, usual_seconds(deployment), first=plan.profile.first_start)
    reader, cursor = reader_of(plan), runtime.next_line()
    try:
        changed = runtime.start(_told(runtime.name, times.show))
    except EngineNotReady as problem:
        # what Docker and Compose say has fingerprints too
        findings = reader.read([problem.message, *problem.detail.splitlines()])
        if findings.diagnosis is None:
            raise
        raise explained(EngineNotReady, problem.message, findings) from None
    with endpoint_of(deployment, plan) as endpoint:
        # what an earlier engine died of is no news; of one that runs all that it has written counts
        waiting = Waiting(
            runtime,
            endpoint,
            reader,
            Phases(plan.engine.engine),
            question=plan.pair.text.ask,
            patience=patience,
            show=times.show,
            cursor=cursor if changed else "",
        )
        try:
            answer = waiting.until_ready()
        except EngineNotReady:
            # one that ran before this command, with the same settings, is not this command's to stop
            if changed:
                # where not even that can be done the first problem is still the one to tell
                with suppress(EngineNotReady):
                    runtime.halt()
            raise
        if changed:
            remember_seconds(deployment, times.ended())
        seconds = times.elapsed
        speed, length = _measured(endpoint, plan.pair.text.ask)
        return Ready(endpoint.url, endpoint.model, runtime.name, changed, seconds, answer, speed, length)


def _told(runtime: str, show: Show) -> Narrate:
    """Takes what a runtime says while it makes an engine's process, and shows the phase that it is in."""
    phases, step = Phases(runtime), Step("creating")

    def narrate(line: str) -> None:
        nonlocal step
        step = phases.after([line], step)
        show(Progress(step.phase, 0.0, line, step.done, step.total))

    return narrate


def _measured(endpoint: Endpoint, question: str) -> tuple[float | None, float | None]:
    """Tokens a second and acceptance length of one short answer: the first sight of whether drafts are accepted."""
    try:
        before = endpoint.counters()
        answer = endpoint.chat(question, max_tokens=WARM_UP_TOKENS)
        length = (endpoint.counters() - before).acceptance_length
    except EndpointError:
        # an engine that is up is not to be called down for this
        return None, None
    return (answer.completion_tokens / answer.seconds if answer.seconds > 0 else None), length


def preflight(deployment: Deployment, plan: Plan, runtime: Runtime, *, new_key: bool = False) -> None:
    """All that can be known to go wrong before starting; raises the first PreflightRefused or SettingsRefused.

    `new_key`: the key is about to be replaced, so the present one may be anything.
    """
    engine_command(plan)
    rank = plan.values.get("NODE_RANK", "")
    if rank not in {"", "0"}:
        raise PreflightRefused(
            f"this machine is rank {rank}, which answers nobody",
            hint="start it with `docker compose up -d`, then `up` on rank 0",
        )
    if not new_key:
        _check_key(deployment)
    for finding in plan.errors:
        raise PreflightRefused(finding.message, hint=finding.fix)
    runtime.preflight()
    _check_weights(deployment, plan)
    _check_port(plan, runtime)


def _check_weights(deployment: Deployment, plan: Plan) -> None:
    """Target and drafter are there, each with the files that its engine needs."""
    target, drafter = deployment.path(plan.values["MODEL_HOST_PATH"]), deployment.path(drafter_host_path(plan.values))
    mounted = plan.runtime == "compose"
    check_weights(
        target,
        role="target",
        setting="MODEL_HOST_PATH",
        mounted=mounted,
        file=plan.values.get("MODEL_FILE", ""),
        fetch=plan.pair.target.download(str(target)),
    )
    if plan.drafting:
        check_weights(
            drafter,
            role="drafter",
            setting="DRAFTER_HOST_PATH",
            mounted=mounted,
            file=plan.values.get("DRAFTER_FILE", ""),
            fetch=plan.pair.drafter.download(str(drafter)),
        )


def _check_key(deployment: Deployment) -> None:
    """The key is there, every reader of `.env` finds the same one, and nobody else can read it."""
    if not deployment.key_is_sound:
        raise SettingsRefused(
            ".env: VLLM_API_KEY and each of DFLASH_API_KEYS must have 16 characters or more: letters, digits, - and _",
            hint="make one: dflash-deploy keys rotate",
        )
    if not deployment.is_private():
        raise PreflightRefused(
            f"{deployment.env_file} holds the key and can be read by others", hint=f"chmod 600 {deployment.env_file}"
        )


def _check_port(plan: Plan, runtime: Runtime) -> None:
    """The address is one of this machine, and nobody else listens there. The last look: all else was in order."""
    host, port = plan.values["DFLASH_BIND"], int(plan.values["DFLASH_PORT"])
    if not is_address_here(host):
        raise PreflightRefused(
            f"DFLASH_BIND={host} is no address of this machine", hint="`ip addr` lists those that it has"
        )
    state = runtime.state()
    ours = state.alive and state.address == f"{host}:{port}"
    if not ours and listener_on(host, port):
        raise PortTaken(
            f"something else already listens on {host}:{port}",
            hint="set another DFLASH_PORT in .env, or see who it is: `ss -ltnp`",
        )

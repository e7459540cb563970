"""`keys rotate` under a running deployment: start the engine anew with a fresh key, prove that the old one is dead.

It may be ended at any moment. What would keep the engine from starting is found before anything changes. Then `.env`
gets the new key in one step, and the old one is never brought back, since it may be known to others: whatever happens
after that, `up` goes on with the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from dflash_deploy.client import EndpointError
from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import DeployError, EngineMissing, Interrupted, KeyNotReplaced
from dflash_deploy.plan import Plan
from dflash_deploy.runtime import Runtime
from dflash_deploy.startup.bring_up import Ready, bring_up, endpoint_of
from dflash_deploy.startup.preflight import preflight
from dflash_deploy.startup.progress import ShowProgress

PROBE_TIMEOUT = 30.0
"""Seconds for one short answer of an engine that is ready."""


@dataclass(frozen=True)
class Rotation:
    """A key that was replaced under a running deployment.

    `old_before`, `old_after`, `new_after`: the HTTP status of a generation asked for with the old key before the
    restart and after it, and with the new one after it. `None`: no answer, as from an engine that was still loading.
    """

    deployment: Deployment
    ready: Ready
    old_before: int | None
    old_after: int | None
    new_after: int | None


def is_up(runtime: Runtime) -> bool:
    """Whether an engine runs, or is about to again. Raises EngineMissing where that cannot be known."""
    return runtime.state().phase not in {"absent", "exited"}


def rotate_running(
    old: Deployment,
    plan: Plan,
    runtime_of: Callable[[Deployment], Runtime],
    *,
    patience: float,
    show: ShowProgress,
) -> Rotation:
    """Replace the key of a deployment that runs, start its engine anew, and try both keys.

    Raises PreflightRefused or SettingsRefused while nothing has changed; EngineNotReady where the engine does not come
    back, and Interrupted, both with the new key in `.env`; KeyNotReplaced where the old one is not turned away.
    """
    running = runtime_of(old)
    preflight(old, plan, running, new_key=True)
    old_before, before = _asked_with(old, plan), running.state().identity
    try:
        new = old.with_new_key()
        ready = bring_up(new, plan, runtime_of(new), patience=patience, show=show)
        old_after, new_after = _asked_with(old, plan), _asked_with(new, plan)
    except KeyboardInterrupt:
        raise Interrupted(_where_it_stands(old, running, before)) from None
    except DeployError as problem:
        problem.hint = f"{problem.hint}; {_where_it_stands(old, running, before)}"
        raise
    if (old_after, new_after) != (HTTPStatus.UNAUTHORIZED, HTTPStatus.OK):
        got = f"the old key was answered {old_after or 'nothing'}, the new one {new_after or 'nothing'}"
        raise KeyNotReplaced(
            f"after the restart {got}",
            hint=f"401 and 200 are right: does another engine listen on {ready.endpoint}? `dflash-deploy test` looks",
        )
    return Rotation(new, ready, old_before, old_after, new_after)


def _asked_with(deployment: Deployment, plan: Plan) -> int | None:
    """The HTTP status of a generation asked for with one deployment's key; `None` where no answer came.

    A generation, since llama.cpp lists its models to everybody (tools/server/server-http.cpp, public endpoints).
    """
    with endpoint_of(deployment, plan, timeout=PROBE_TIMEOUT) as endpoint:
        try:
            endpoint.chat(plan.pair.text.ask, max_tokens=1)
        except EndpointError as problem:
            return problem.status
        return HTTPStatus.OK


def _where_it_stands(old: Deployment, runtime: Runtime, before: str) -> str:
    """What is true after a rotation that did not come to its end. `before` is the identity of the engine then."""
    if Deployment(old.directory).key == old.key:
        return "nothing has changed: .env still holds the old key"
    try:
        state = runtime.state()
    except EngineMissing:
        return ".env holds the new key, which `dflash-deploy up` puts into force"
    if state.alive and state.identity == before:
        return "the old key is STILL IN FORCE; .env holds the new one, which `dflash-deploy up` puts into force"
    return ".env holds the new key and nothing answers to the old one; `dflash-deploy up` goes on from here"

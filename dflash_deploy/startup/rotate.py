"""`keys rotate` for a running deployment: restarts its engine with a new key, and proves the old one refused.

It may be interrupted at any moment. Preflight runs before anything changes. Then `.env` gets the new key in one atomic
write. The old key is never restored, since others may know it: after an interruption, `up` continues with the new key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from dflash_deploy.client.answers import EndpointError
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import DeployError, EngineMissing, Interrupted, KeyNotReplaced
from dflash_deploy.startup.engine import endpoint_of
from dflash_deploy.startup.start import Ready, bring_up, preflight

if TYPE_CHECKING:
    from dflash_deploy.plan.result import Plan
    from dflash_deploy.runtime.protocol import Runtime
    from dflash_deploy.startup.progress import ShowProgress

PROBE_TIMEOUT = 30.0
"""Seconds for one short answer of a ready engine."""


@dataclass(frozen=True)
class Rotation:
    """The result of replacing the key of a running deployment.

    `old_before`, `old_after`, `new_after`: the HTTP status of a generation with the old key before and after the
    restart, and with the new key after it. `None`: no answer, as from an engine that is still loading.
    """

    deployment: Deployment
    ready: Ready
    old_before: int | None
    old_after: int | None
    new_after: int | None


def is_up(runtime: Runtime) -> bool:
    """Return whether an engine runs or restarts. Raises EngineMissing if Docker does not respond."""
    return runtime.state().phase not in {"absent", "exited"}


def rotate_running(
    old: Deployment,
    plan: Plan,
    runtime_of: Callable[[Deployment], Runtime],
    *,
    patience: float,
    show: ShowProgress,
) -> Rotation:
    """Replace the key of a running deployment, restart its engine, and try both keys.

    Raises PreflightRefused or SettingsRefused before anything changes. Raises EngineNotReady if the engine does not
    become ready, or Interrupted, both with the new key in `.env`. Raises KeyNotReplaced if the old key is not refused.
    """
    running = runtime_of(old)
    preflight(old, plan, running, new_key=True)
    old_before, before = generation_status(old, plan), running.state().identity
    try:
        new = old.with_new_key()
        ready = bring_up(new, plan, runtime_of(new), patience=patience, show=show)
        old_after, new_after = generation_status(old, plan), generation_status(new, plan)
    except KeyboardInterrupt:
        raise Interrupted(_interrupted_state(old, running, before)) from None
    except DeployError as problem:
        problem.hint = f"{problem.hint}; {_interrupted_state(old, running, before)}"
        raise
    if (old_after, new_after) != (HTTPStatus.UNAUTHORIZED, HTTPStatus.OK):
        got = f"{old_after or 'no answer'} for the old key and {new_after or 'no answer'} for the new key"
        raise KeyNotReplaced(
            f"after the restart the endpoint returned {got}, expected 401 and 200",
            hint=f"another engine may listen on {ready.endpoint}: check with `dflash-deploy test`",
        )
    return Rotation(new, ready, old_before, old_after, new_after)


def generation_status(deployment: Deployment, plan: Plan) -> int | None:
    """Return the HTTP status of a generation with the deployment's key; `None` if no answer came.

    It must be a generation: llama.cpp lists its models without a key (tools/server/server-http.cpp, public endpoints).
    """
    with endpoint_of(deployment, plan, timeout=PROBE_TIMEOUT) as endpoint:
        try:
            endpoint.chat(plan.pair.text.ask, max_tokens=1)
        except EndpointError as problem:
            return problem.status
        return HTTPStatus.OK


def _interrupted_state(old: Deployment, runtime: Runtime, before: str) -> str:
    """Describe the state after an interrupted rotation. `before` is the identity of the engine before it."""
    if Deployment(old.directory).key == old.key:
        return "nothing changed: .env still has the old key"
    try:
        state = runtime.state()
    except EngineMissing:
        return ".env has the new key; activate it with `dflash-deploy up`"
    if state.alive and state.identity == before:
        return "the old key is STILL VALID; .env has the new key; activate it with `dflash-deploy up`"
    return ".env has the new key and the old key is no longer valid; continue with `dflash-deploy up`"

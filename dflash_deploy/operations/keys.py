"""`keys`: keys with names, and a new API key of a deployment, which the endpoint proves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.metrics import KeyUsage
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.journal import engine_work, record
from dflash_deploy.deployment.keys import write_keys
from dflash_deploy.deployment.lock import locked
from dflash_deploy.document import Documented, Fingerprint, Hidden, HttpStatus, Keywords, Seconds
from dflash_deploy.errors import DeployError, EngineMissing, EngineNotReady, Interrupted, KeyNotReplaced, NotPossible
from dflash_deploy.operations.key_file import key_with
from dflash_deploy.operations.reporter import SILENT, Reporter, start_shown
from dflash_deploy.plan.result import Plan, RuntimeName
from dflash_deploy.planning import plan_as_running, plan_of, plan_to_stop
from dflash_deploy.redact import Redactor, Secret, generate_key
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.serve.api_keys import NAMES, ApiKey, Scope, is_name, keys_in
from dflash_deploy.serve.gateway.keys import METRICS
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.engine import endpoint_of
from dflash_deploy.startup.start import Ready, bring_up, preflight

if TYPE_CHECKING:
    from dflash_deploy.runtime.protocol import Runtime
    from dflash_deploy.startup.progress import ShowProgress


PROBE_TIMEOUT = 30.0  # seconds for one short answer of a ready engine


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


Limit = Annotated[int, Keywords(minimum=1)]


@dataclass(frozen=True)
class OldKeyStatus(Documented):
    """HTTP status of a request with the old key; null if nothing answered."""

    before: HttpStatus | None
    """Before the restart."""
    after: HttpStatus | None
    """After the restart: 401."""


@dataclass(frozen=True)
class NewKeyStatus(Documented):
    """HTTP status of a request with the new key; null if nothing answered."""

    after: HttpStatus | None
    """After the restart: 200."""


@dataclass(frozen=True)
class KeyProof(Documented):
    """The proof that the endpoint rejects the old key and accepts the new one."""

    old_key: OldKeyStatus
    """The answers to the old key."""
    new_key: NewKeyStatus
    """The answer to the new key."""


@dataclass(frozen=True)
class Replaced(Documented):
    """A replaced API key. Neither key is in the document."""

    file: Path
    """Path of the file that has the key."""
    fingerprint: Fingerprint
    """The first 8 hexadecimal digits of the new key's SHA-256."""
    old_fingerprint: Fingerprint | None
    """The same of the old key; null if that was empty or too short."""
    restarted: bool
    """Whether an engine ran and was restarted with the new key."""
    proof: KeyProof | None
    """The proof; null if no engine ran."""
    new: Hidden[Deployment]
    also_in: Hidden[Sequence[str]]
    """Other settings of `.env` that had the old key."""
    endpoint: str | None = None
    """Base URL for OpenAI clients; it ends with `/v1`. Missing, as the next ones, if no engine ran."""
    model: str | None = None
    """Name of the model in requests."""
    runtime: RuntimeName | None = None
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    state: Literal["ready"] | None = None
    """The engine has answered a request."""
    seconds: Seconds | None = None
    """Seconds from the beginning of the start to the first answer."""


def rotate_key(directory: Path, *, patience: float = PATIENCE, reporter: Reporter = SILENT) -> Replaced:
    """Write a new key into `.env`, restart an engine that runs, and prove that it rejects the old key.

    Raises what `startup.rotate_running` raises: nothing has changed after
    PreflightRefused and SettingsRefused.
    """
    with locked(directory, "keys rotate", check=False) as old:
        if is_up(runtime_for(old, plan_to_stop(old))):
            with engine_work(old, "keys rotate"):
                rotation = _rotated(Deployment.existing(directory), patience, reporter)
            record(rotation.deployment, "key", "keys rotate", "the API key was replaced; the engine restarted")
            return _replaced(old, rotation.deployment, rotation)
        new = old.with_new_key()
        record(new, "key", "keys rotate", "the API key was replaced")
        return _replaced(old, new, None)


def _replaced(old: Deployment, new: Deployment, rotation: Rotation | None) -> Replaced:
    # an old key that is too short could be guessed from its fingerprint
    was = old.key.fingerprint if old.key_is_sound else None
    begun = (new.env_file, new.key.fingerprint, was)
    if rotation is None:
        return Replaced(*begun, restarted=False, proof=None, new=new, also_in=old.settings_with_the_key)
    ready = rotation.ready
    return Replaced(
        *begun,
        restarted=True,
        proof=KeyProof(OldKeyStatus(rotation.old_before, rotation.old_after), NewKeyStatus(rotation.new_after)),
        new=new,
        also_in=old.settings_with_the_key,
        endpoint=f"{ready.endpoint}/v1",
        model=ready.model,
        runtime=ready.runtime,
        state="ready",
        seconds=round(ready.seconds, 1),
    )


def _rotated(old: Deployment, patience: float, reporter: Reporter) -> Rotation:
    plan = plan_of(old)
    what = "container is created again" if plan.runtime == "compose" else "process is stopped and started"
    reporter.note(f"the engine's {what}, with .env as it is now; answers under way are cut off")
    if plan.settings.several_machines:
        reporter.note("the engines on the other machines lose this one: restart them too")
    known = old.known_secrets

    def redact(text: str) -> str:
        # .env changes meanwhile, and neither key may be shown
        return Redactor([*known, *Deployment(old.directory).known_secrets])(text)

    with start_shown(reporter, redact) as show:
        return rotate_running(old, plan, lambda of: runtime_for(of, plan), patience=patience, show=show)


# Seconds until a running gateway must have read a changed key: it checks the file with each request.
PROOF_WITHIN = 10.0


@dataclass(frozen=True)
class NamedKey(Documented):
    """A further key, without its value."""

    name: str
    """Name of the key."""
    scope: Scope
    """What it opens. `infer`: routes that generate. `metrics`: GET /metrics. `all`: every route."""
    in_flight: Limit | None
    """Most requests at the same time; null without a limit."""
    tokens_per_minute: Limit | None
    """Most tokens read and generated within 60 s; null without a limit."""
    fingerprint: Fingerprint
    """The first 8 hexadecimal digits of the key's SHA-256."""


@dataclass(frozen=True)
class KeyChange(NamedKey):
    """A key that was added or revoked."""

    file: Path
    """Path of the file that has the keys."""
    status: HttpStatus | None
    """HTTP status of a request with this key now: 200 if it was added, 401 if revoked; null if no engine answers."""
    deployment: Hidden[Deployment]


@dataclass(frozen=True)
class Keys(Documented):
    """The further keys of the deployment."""

    file: Path
    """Path of the file that has the keys."""
    keys: Sequence[NamedKey]
    """The keys; empty if there are none."""


@dataclass(frozen=True)
class UsageByName(Documented):
    """What all keys used since the start of the engine."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    keys: Sequence[KeyUsage]
    """The keys that were used, by name."""


def described(key: ApiKey) -> NamedKey:
    """A key without its value."""
    return NamedKey(key.name, key.scope, key.in_flight, key.tokens_per_minute, Secret(key.key).fingerprint)


def add_key(
    directory: Path,
    name: str,
    *,
    scope: Scope = "infer",
    in_flight: int | None = None,
    tokens_per_minute: int | None = None,
) -> KeyChange:
    """Write a new key with this name into `.env`. A running engine accepts it without a restart.

    Raises NotPossible if the name is taken or is not valid; KeyNotReplaced if a running engine
    refuses the key.
    """
    with locked(directory, "keys add", check=False) as deployment:
        key = ApiKey(name, generate_key().reveal(), scope, in_flight, tokens_per_minute)
        keys = with_key(deployment.further_keys, key)
        done = _written(deployment, keys, key, {HTTPStatus.OK})
        record(deployment, "key", "keys add", f"{name}, scope {scope}")
        return done


def revoke_key(directory: Path, name: str) -> KeyChange:
    """Remove the key with this name from `.env`. A running engine rejects it without a restart.

    Requests that it has begun continue. Raises NotPossible if no key has the name; KeyNotReplaced if
    a running engine still accepts the key.
    """
    with locked(directory, "keys revoke", check=False) as deployment:
        before = deployment.further_keys
        key = key_with(before, name)
        kept = tuple(each for each in before if each.name != name)
        done = _written(deployment, kept, key, {HTTPStatus.UNAUTHORIZED})
        record(deployment, "key", "keys revoke", name)
        return done


def with_key(before: Sequence[ApiKey], key: ApiKey) -> tuple[ApiKey, ...]:
    """The keys with a new one. Raises NotPossible if its name is taken or is not valid, or there are too many."""
    if key.name in {each.name for each in before}:
        taken = f"cannot add the key: another key has the name `{key.name}`"
        raise NotPossible(taken, hint="choose another name, or revoke that key first")
    if not is_name(key.name):
        # it may be a key in the wrong place, so it is not shown
        raise NotPossible("cannot add the key: its name is not valid", hint=NAMES)
    try:
        return keys_in(",".join(each.written() for each in (*before, key)))
    except Refused as refusal:
        raise NotPossible(f"cannot add the key: {refusal.message}", hint=refusal.hint) from None


def list_keys(directory: Path) -> Keys:
    """The further keys of a deployment. Raises NoDeployment, SettingsRefused."""
    deployment = Deployment.existing(directory, check=False)
    return Keys(deployment.env_file, [described(key) for key in deployment.further_keys])


def usage_of_keys(directory: Path) -> UsageByName:
    """What each key used since the engine's start. Raises EngineNotReady if the endpoint does not answer."""
    deployment = Deployment.existing(directory)
    plan = plan_as_running(deployment)
    with endpoint_of(deployment, plan, timeout=PROBE_TIMEOUT) as endpoint:
        try:
            return UsageByName(f"{endpoint.url}/v1", endpoint.key_usage())
        except EndpointError as problem:
            raise EngineNotReady(
                f"the endpoint does not say what its keys used: {problem}",
                hint="see whether the engine runs: `dflash-deploy status`",
            ) from None


def _written(old: Deployment, keys: Sequence[ApiKey], changed: ApiKey, expected: set[HTTPStatus]) -> KeyChange:
    new = old.with_further_keys(keys)
    write_keys(new)
    if not _runs(new, adding=HTTPStatus.OK in expected):
        return _change(new, changed, None)
    with endpoint_of(new, plan_to_stop(new), timeout=PROBE_TIMEOUT) as endpoint:
        # an engine that does not run reads the keys when it starts
        status = _status_of_key(endpoint, changed, expected)
    if status is not None and status not in expected:
        raise KeyNotReplaced(
            f"the endpoint answers the key `{changed.name}` with {status}; .env is changed",
            hint="the engine started before keys could change: `dflash-deploy restart`",
        )
    return _change(new, changed, status)


def _change(deployment: Deployment, key: ApiKey, status: int | None) -> KeyChange:
    return KeyChange(**vars(described(key)), file=deployment.env_file, status=status, deployment=deployment)


def _runs(deployment: Deployment, *, adding: bool) -> bool:
    """Whether an engine runs, as far as is known. Raises EngineMissing if a key is removed and Docker does not respond.

    That a removed key is refused must be proven. A new one is in the file that gateways read with each request, so it
    needs no Docker.
    """
    try:
        return is_up(runtime_for(deployment, plan_to_stop(deployment)))
    except EngineMissing:
        if adding:
            return False
        raise


def _status_of_key(endpoint: Endpoint, key: ApiKey, expected: set[HTTPStatus]) -> int | None:
    path = METRICS if key.scope == "metrics" else "/v1/models"
    until = time.monotonic() + PROOF_WITHIN
    while True:
        try:
            status = endpoint.status("GET", path, key=Secret(key.key))
        except EndpointError:
            return None
        if status in expected or time.monotonic() > until:
            return status
        time.sleep(0.1)

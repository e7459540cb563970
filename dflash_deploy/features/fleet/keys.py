"""`fleet keys`: adds, replaces or revokes a key on all hosts, without a request that is refused meanwhile.

All hosts accept a new key before `.env` has it, so that no client can send it earlier. A replaced key is accepted until
all hosts have the new one, and for some seconds after that. `fleet accept` sets the keys that the engines of a host
accept in that time. A change that is interrupted leaves a file with the key's name: `fleet up` gives all hosts the keys
of `.env`, and no others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Literal

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_if_changed
from dflash_deploy.deployment.journal import record
from dflash_deploy.deployment.keys import accept_also
from dflash_deploy.deployment.lock import locked
from dflash_deploy.document import Documented, Fingerprint, HttpStatus
from dflash_deploy.errors import HostUnprepared, KeyNotReplaced, NotPossible, SettingsRefused
from dflash_deploy.features.fleet.change import (
    Outcomes,
    mark_as_started,
    one_after_the_other,
    restarts,
    runs_as_started,
    start_ranks,
)
from dflash_deploy.features.fleet.engines import ABSENT, absent, call_patiently, link_addresses
from dflash_deploy.features.fleet.file import Proof, WantedKeys, in_turns, read_wanted
from dflash_deploy.features.fleet.settings import FleetResult, HostOutcome, OpenFleet, ask_again, open_fleet
from dflash_deploy.features.fleet.ssh import RemoteDocument, Session
from dflash_deploy.intake.documents import read_state_text, remove_state
from dflash_deploy.operations.key_file import key_with
from dflash_deploy.operations.keys import answered_status, with_key
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.planning import plan_to_stop
from dflash_deploy.redact import Secret, generate_key
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.serve.api_keys import OWNER, ApiKey, Scope
from dflash_deploy.serve.gateway.keys import Accepted, accepted
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.rotate import is_up

WAITS = 300.0
"""Seconds for which a change of keys waits for another command on a host, such as its `up`."""

OVERLAP = 10.0
"""Seconds for which a replaced key stays valid after all hosts have the new one."""

OK, UNAUTHORIZED = HTTPStatus.OK, HTTPStatus.UNAUTHORIZED


@dataclass(frozen=True)
class FleetKeys(FleetResult):
    """A key that was added, replaced or revoked on all hosts. No key is in the document."""

    file: Path
    """Path of the file that has the keys, on the terminal."""
    name: str
    """Name of the key; `owner` is VLLM_API_KEY."""
    fingerprint: Fingerprint | None
    """The first 8 hexadecimal digits of the key's SHA-256; null if the file does not have it."""
    finished: bool
    """Whether all hosts have done it; else `fleet up` does."""


def fleet_add_key(
    directory: Path,
    name: str,
    *,
    scope: Scope = "infer",
    in_flight: int | None = None,
    tokens_per_minute: int | None = None,
    reporter: Reporter = SILENT,
) -> FleetKeys:
    """Add a key that all hosts accept, and write it into `.env` after that. No engine restarts.

    Raises as `open_fleet`, DirectoryBusy, and NotPossible if the name is taken or is not valid, or another change is
    not finished. Failures of hosts are in the result.
    """
    with locked(directory, "fleet keys add") as deployment:
        opened = open_fleet(directory, (), reporter)
        key = ApiKey(name, generate_key().reveal(), scope, in_flight, tokens_per_minute)
        keys = with_key(deployment.further_keys, key)
        _begin(deployment, name)
        first = _accept(opened, WantedKeys((accepted(key),), (Proof(key, OK),)))
        if _failed(first):
            return _not_begun(opened, name, first)
        opened = replace(opened, deployment=deployment.with_further_keys(keys))
        record(opened.deployment, "key", "fleet keys add", f"{name}, scope {scope}")
        return _done(opened, name, _write(opened, ()))


def fleet_revoke_key(directory: Path, name: str, *, reporter: Reporter = SILENT) -> FleetKeys:
    """Remove a key from `.env`, and from all hosts: their engines reject it at once, without a restart.

    If a host fails, the others have rejected it. Raises as `open_fleet`, DirectoryBusy, and NotPossible if no key has
    the name. Failures of hosts are in the result.
    """
    with locked(directory, "fleet keys revoke") as deployment:
        opened = open_fleet(directory, (), reporter)
        key = key_with(deployment.further_keys, name)
        kept = tuple(one for one in deployment.further_keys if one.name != name)
        # hosts keep accepting both keys of another change that is not finished
        other = _changed(deployment) not in {"", name}
        if not other:
            _begin(deployment, name)
        opened = replace(opened, deployment=deployment.with_further_keys(kept))
        record(opened.deployment, "key", "fleet keys revoke", name)
        outcomes = _write(opened, None if other else (), Proof(key, UNAUTHORIZED))
        return _done(opened, name, outcomes, settles=not other)


def fleet_rotate_key(
    directory: Path,
    name: str = OWNER,
    *,
    overlap: float = OVERLAP,
    patience: float = PATIENCE,
    reporter: Reporter = SILENT,
) -> FleetKeys:
    """Replace a key on all hosts. For the owner's key the engines restart, one host after the other.

    The old key is rejected `overlap` seconds after all hosts have the new one. Raises as `fleet_add_key`, and
    SettingsRefused if the owner's key is not sound.
    """
    with locked(directory, "fleet keys rotate") as deployment:
        opened = open_fleet(directory, (), reporter)
        old = _present(deployment, name)
        new = replace(old, key=generate_key().reveal())
        both = (accepted(new), accepted(old))
        _begin(deployment, name)
        first = _accept(opened, WantedKeys(both, (Proof(new, OK),)))
        if _failed(first):
            return _not_begun(opened, name, first)
        opened = replace(opened, deployment=_with_new(deployment, new))
        record(opened.deployment, "key", "fleet keys rotate", f"{name}: the key was replaced")
        reporter.note("all hosts accept both keys; .env has the new one")
        outcomes = _write(opened, both)
        if name == OWNER and not _failed(outcomes):
            outcomes = _restarted(opened, outcomes, patience)
        if _failed(outcomes):
            return _done(opened, name, outcomes)
        if overlap:
            reporter.note(f"the old key is valid for {overlap:g} s more")
            time.sleep(overlap)
        last = _write(opened, (), Proof(old, UNAUTHORIZED))
        return _done(opened, name, last if _failed(last) else outcomes)


def settle_keys(opened: OpenFleet) -> None:
    """Finish a change of keys that was interrupted, after all hosts have `.env` and run with it.

    If a host fails, the next `fleet up` tries again.
    """
    if _changing(opened.deployment).exists() and not _failed(_accept(opened, WantedKeys())):
        remove_state(_changing(opened.deployment))


def _changing(deployment: Deployment) -> Path:
    """The file with the name of the key that is changed, until all hosts have the change."""
    return deployment.state / "key-changing"


def _changed(deployment: Deployment) -> str:
    """The name of the key whose change is not finished; empty if `.env` has none."""
    return (read_state_text(_changing(deployment)) or "").strip()


def _begin(deployment: Deployment, name: str) -> None:
    """Remember that hosts may accept a key that `.env` does not have. Raises NotPossible beside another change."""
    other = _changed(deployment)
    if other not in {"", name}:
        raise NotPossible(
            f"a change of the key `{other}` is not finished", hint="finish it first: dflash-deploy fleet up"
        )
    _remember(deployment, name)


def _remember(deployment: Deployment, name: str) -> None:
    deployment.make_state()
    write_if_changed(_changing(deployment), f"{name}\n", mode=PRIVATE)


def _keys(deployment: Deployment) -> tuple[ApiKey, ...]:
    return (ApiKey(OWNER, deployment.key.reveal()), *deployment.further_keys)


def _present(deployment: Deployment, name: str) -> ApiKey:
    """The key that is replaced. Raises NotPossible, and SettingsRefused if the owner's key is not sound."""
    if name == OWNER and not deployment.key_is_sound:
        raise SettingsRefused(
            ".env: the API key is empty, too short, or has characters that files quote",
            hint="make one: `dflash-deploy keys rotate`, then `dflash-deploy fleet up`",
        )
    return next((key for key in _keys(deployment) if key.name == name), None) or key_with(deployment.further_keys, name)


def _with_new(deployment: Deployment, new: ApiKey) -> Deployment:
    if new.name == OWNER:
        return deployment.with_new_key(Secret(new.key))
    return deployment.with_further_keys([new if key.name == new.name else key for key in deployment.further_keys])


def _accept(opened: OpenFleet, keys: WantedKeys) -> Outcomes:
    """Let all hosts accept keys. A host without a deployment stays as it is: `fleet up` makes it."""
    return opened.on_each(lambda one: _accepted(opened, one, keys), opened.fleet.hosts)


def _accepted(opened: OpenFleet, session: Session, keys: WantedKeys) -> RemoteDocument:
    def call() -> RemoteDocument:
        return call_patiently(opened, session, "fleet accept", patience=WAITS, stdin=keys.document())

    try:
        return ask_again(call)
    except HostUnprepared as problem:
        return absent(session, problem)


def _write(opened: OpenFleet, also: tuple[Accepted, ...] | None, *proofs: Proof) -> Outcomes:
    """Write the keys of `.env` into that of all hosts. Their engines run on: they read further keys again."""
    deployment = opened.deployment
    keys = WantedKeys(also, proofs, deployment.key, deployment.further_keys)

    def write(session: Session) -> RemoteDocument:
        same = ask_again(lambda: runs_as_started(opened, session))
        owners = any(one.name == OWNER for one in also or ())
        done = _accepted(opened, session, keys)
        if same and not owners and done is not ABSENT:
            ask_again(lambda: mark_as_started(opened, session))
        return done

    return opened.on_each(write, opened.fleet.hosts)


def _restarted(opened: OpenFleet, written: Outcomes, patience: float) -> Outcomes:
    """Restart the engines that run with the old key, one host after the other; the ranks of one engine together."""
    there = tuple(one.host for one in written.values() if one.result is not ABSENT)
    stale = opened.on_each(lambda one: ask_again(lambda: restarts(opened, one)), there)
    failed = {name: HostOutcome[RemoteDocument](one.host, one.seconds, error=one.error)
              for name, one in stale.items() if one.error}  # fmt: skip
    if failed:
        return {**written, **failed}
    names = {name for name, one in stale.items() if one.result}
    if names and opened.chosen.shape == "one-engine":
        return start_ranks(opened, link_addresses(opened), patience)
    _, turns = in_turns(there, opened.fleet.leader, names)
    return {**written, **one_after_the_other(opened, turns, patience, "restart")}


def _failed(outcomes: Outcomes) -> bool:
    return any(one.error for one in outcomes.values())


def _not_begun(opened: OpenFleet, name: str, outcomes: Outcomes) -> FleetKeys:
    """A host does not accept the new key: no client gets it. The next change, or `fleet up`, removes it."""
    _remember(opened.deployment, "")
    opened.reporter.note(".env is not changed: all hosts must accept a new key first")
    return _result(opened, name, outcomes, finished=False)


def _done(opened: OpenFleet, name: str, outcomes: Outcomes, *, settles: bool = True) -> FleetKeys:
    """The result of a change that `.env` has. `settles`: no other change is left."""
    finished = not _failed(outcomes)
    if finished and settles:
        remove_state(_changing(opened.deployment))
    if not finished:
        opened.reporter.note("not finished: .env is changed; `dflash-deploy fleet up` finishes it")
    return _result(opened, name, outcomes, finished=finished)


def _result(opened: OpenFleet, name: str, outcomes: Outcomes, *, finished: bool) -> FleetKeys:
    done = opened.results({host.name: outcomes[host.name] for host in opened.fleet.hosts}, "accepted")
    key = next((one for one in _keys(opened.deployment) if one.name == name), None)
    fingerprint = Secret(key.key).fingerprint if key else None
    file = opened.deployment.env_file
    return FleetKeys(done.failure, done.shape, done.reason, done.router, done.hosts, file, name, fingerprint, finished)


@dataclass(frozen=True)
class KeyAnswer(Documented):
    """What the engines of a machine answer to a key."""

    name: str
    """Name of the key; `owner` is VLLM_API_KEY."""
    status: HttpStatus | None
    """HTTP status; null if no engine answered."""


@dataclass(frozen=True)
class AcceptedKeys(Documented):
    """Whether the engines of a machine accept the keys that the terminal of a fleet sent."""

    state: Literal["accepted", "stopped"]
    """`stopped`: no engine runs; it reads the keys when it starts."""
    answers: Sequence[KeyAnswer] = ()
    """What the engines answer to each key that the terminal wants to be proven; empty if none runs."""


def fleet_accept(directory: Path, asked: bytes, *, reporter: Reporter = SILENT) -> AcceptedKeys:
    """Let the engines accept keys beside those of `.env`, without a restart, and prove it.

    `asked` is `WantedKeys.document` of the terminal. Raises BadInput if it is not, NoDeployment, DirectoryBusy, and
    KeyNotReplaced if a running engine answers a key with another status.
    """
    keys = read_wanted(asked)
    with locked(directory, "fleet accept", check=False) as before:
        deployment = _written(before, keys)
        accept_also(deployment, keys.also)
        if not is_up(runtime_for(deployment, plan_to_stop(deployment))):
            reporter.note("no engine runs here: it gets the keys when it starts")
            return AcceptedKeys("stopped")
        answers = []
        for proof in keys.proofs:
            status = answered_status(deployment, proof.key, {proof.status})
            if status not in {None, proof.status}:
                raise KeyNotReplaced(
                    f"the engine answers the key `{proof.key.name}` with {status}, expected {int(proof.status)}",
                    hint="the engine started before keys could change: `dflash-deploy fleet restart`",
                )
            answers.append(KeyAnswer(proof.key.name, status))
    return AcceptedKeys("accepted", answers)


def _written(deployment: Deployment, keys: WantedKeys) -> Deployment:
    """Write the keys that `.env` and `.env.last` shall have; return the deployment read again."""
    if keys.owner is not None and keys.owner.reveal() != deployment.key.reveal():
        deployment = deployment.with_new_key(keys.owner)
    if keys.further is not None and keys.further != deployment.further_keys:
        deployment = deployment.with_further_keys(keys.further)
    # `fleet up` may have written `.env` before, and kept the one with the old keys
    deployment.keys_into_last()
    return deployment

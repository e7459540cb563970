"""`keys rotate`: a new API key of a deployment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

from dflash_deploy.deployment import Deployment, locked
from dflash_deploy.deployment.dotenv import MOST_BYTES
from dflash_deploy.deployment.journal import record
from dflash_deploy.deployment.keys_file import write_keys
from dflash_deploy.deployment.router_files import retire_key
from dflash_deploy.errors import DeployError, Interrupted, KeyNotReplaced
from dflash_deploy.intake import read_text
from dflash_deploy.operations.key_file import refuse_fleet
from dflash_deploy.operations.patience import PATIENCE
from dflash_deploy.operations.reporter import SILENT, Reporter, start_shown
from dflash_deploy.operations.several import SeveralStart
from dflash_deploy.operations.silencing import silenced_work
from dflash_deploy.plan import Plan
from dflash_deploy.planning import plan_of, plan_to_stop
from dflash_deploy.redact import Redactor, generate_key
from dflash_deploy.runtime import runtime_for
from dflash_deploy.startup import Rotation, is_up, rotate_running
from dflash_deploy.startup.members import members_of
from dflash_deploy.startup.preflight import preflight
from dflash_deploy.startup.rotate import generation_status

BOTH_VALID = (
    ".env has the new key; engines that have not restarted still accept the old key: continue with `dflash-deploy up`"
)


@dataclass(frozen=True)
class Replaced:
    """A key that was replaced. `rotation` has the proof that the old one is rejected; `None` if no engine ran."""

    old: Deployment
    new: Deployment
    rotation: Rotation | None

    def document(self) -> dict[str, object]:
        """The `data` of `keys rotate --json`.

        It has fingerprints of both keys, but none of an old key that is too short: it could be guessed from that.
        """
        data: dict[str, object] = {
            "file": str(self.new.env_file),
            "fingerprint": self.new.key.fingerprint,
            "old_fingerprint": self.old.key.fingerprint if self.old.key_is_sound else None,
        }
        if self.rotation is None:
            return data | {"restarted": False, "proof": None}
        ready = self.rotation.ready
        return data | {
            "restarted": True,
            "proof": _proof(self.rotation),
            "endpoint": f"{ready.endpoint}/v1",
            "model": ready.model,
            "runtime": ready.runtime,
            "state": "ready",
            "seconds": round(ready.seconds, 1),
        }


def rotate_key(directory: Path, *, patience: float = PATIENCE, reporter: Reporter = SILENT) -> Replaced:
    """Write a new key into `.env`, restart an engine that runs, and prove that it rejects the old key.

    Raises NotPossible for a fleet, and what `startup.rotate_running` raises: nothing has changed after
    PreflightRefused and SettingsRefused.
    """
    with locked(directory, "keys rotate", check=False) as old:
        if old.key_is_sound:
            # else no host of a fleet has an engine with it
            refuse_fleet(old, "rotate")
        if is_up(runtime_for(old, plan_to_stop(old))):
            with silenced_work(old, "keys rotate", reporter):
                rotation = _rotated(Deployment.existing(directory), patience, reporter)
            record(rotation.deployment, "key", "keys rotate", "the API key was replaced; the engine restarted")
            return Replaced(old, rotation.deployment, rotation)
        new = old.with_new_key()
        record(new, "key", "keys rotate", "the API key was replaced")
        return Replaced(old, new, None)


def _rotated(old: Deployment, patience: float, reporter: Reporter) -> Rotation:
    plan = plan_of(old)
    if plan.settings.several_engines:
        return _rotated_one_at_a_time(old, plan, patience, reporter)
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


def _rotated_one_at_a_time(old: Deployment, plan: Plan, patience: float, reporter: Reporter) -> Rotation:
    """Replace the key of several engines. All of them accept both keys until the last one has restarted."""
    preflight(old, plan, runtime_for(old, plan), new_key=True)
    old_before, coming = generation_status(old, plan), generate_key()
    # the old key stays readable for the proof
    before = members_of(replace(old, text=read_text(old.env_file, limit=MOST_BYTES)), plan)
    reporter.note("the engines restart one at a time; until then both keys are valid")
    retire_key(old)
    write_keys(old, coming=coming)
    new = old.with_new_key(coming)
    try:
        ready = SeveralStart(new, plan, patience, reporter).run(force=True)
    except KeyboardInterrupt:
        raise Interrupted(BOTH_VALID) from None
    except DeployError as problem:
        problem.hint = f"{problem.hint}; {BOTH_VALID}"
        raise
    olds = {generation_status(member.deployment, member.plan) for member in before}
    news = {generation_status(member.deployment, member.plan) for member in members_of(new, plan)}
    if olds != {HTTPStatus.UNAUTHORIZED} or news != {HTTPStatus.OK}:
        raise KeyNotReplaced(
            f"after the restarts the engines returned {_words(olds)} for the old key and {_words(news)} for the new "
            "key, expected 401 and 200",
            hint="start them again with `dflash-deploy restart`",
        )
    return Rotation(new, ready, old_before, HTTPStatus.UNAUTHORIZED, HTTPStatus.OK)


def _words(statuses: set[int | None]) -> str:
    return " and ".join(sorted(str(int(status)) if status else "no answer" for status in statuses))


def _proof(rotation: Rotation) -> dict[str, dict[str, int | None]]:
    return {
        "old_key": {"before": rotation.old_before, "after": rotation.old_after},
        "new_key": {"after": rotation.new_after},
    }

"""The deployment directory: the mode of `.env`, leftovers of an earlier run, and the findings of the plan."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.deployment.lock import LONGEST_HOLDER
from dflash_deploy.doctor.check import Check, DoctorContext, Status
from dflash_deploy.errors import FileRefused, SettingsRefused
from dflash_deploy.host.ask import Container, project_containers
from dflash_deploy.intake.files import read_text
from dflash_deploy.plan.result import Plan

_HALF_WRITTEN = re.compile(r"\..+\.[0-9a-f]{8}|.+\.tmp|build\.\d+")
"""Names of temporary files before they are renamed, and of a build context before it is swapped."""

_LOCKS = Path("/proc/locks")


def env_file(subject: DoctorContext) -> Iterator[Check]:
    """Whether `.env`, which contains the API key, belongs to this user and no other user can read it."""
    deployment = subject.deployment
    if deployment is None:
        return
    status = deployment.env_file.stat()
    mode, user = stat.S_IMODE(status.st_mode), os.geteuid()
    saw = f"{deployment.env_file} has mode {mode:04o} and belongs to user {status.st_uid}"
    if mode & 0o077:
        yield Check(".env", "no", f"{saw}: other users can read the key", f"chmod 600 {deployment.env_file}")
    elif user not in {0, status.st_uid}:
        yield Check(".env", "no", f"{saw}; this is user {user}", f"run dflash-deploy as user {status.st_uid}")
    elif not deployment.key_is_sound:
        fix = "make a new key: `dflash-deploy keys rotate`"
        yield Check(".env", "no", "the API key is empty, too short, or has characters that `.env` would quote", fix)
    elif refused := _refused_keys(deployment):
        yield refused
    elif mode != PRIVATE:
        yield Check(".env", "warning", f"{saw}; the expected mode is 0600", f"chmod 600 {deployment.env_file}")
    else:
        yield Check(".env", "ok", saw)


def _refused_keys(deployment: Deployment) -> Check | None:
    try:
        _ = deployment.further_keys
    except SettingsRefused as problem:
        return Check(".env", "no", problem.message, problem.hint)
    return None


def leftovers(subject: DoctorContext) -> Iterator[Check]:
    """Leftovers of an earlier run: containers that exited, incomplete files, a command that did not finish."""
    deployment = subject.deployment
    if deployment is None:
        return
    busy = _holder(deployment)
    if busy is not None and is_locked(deployment.state / "lock"):
        fix = "wait until it ends, then run `dflash-deploy doctor` again"
        yield Check("leftovers", "warning", f"another command uses this directory: {busy}", fix)
        return
    found = [
        *([f"a command that did not finish ({busy})"] if busy else []),
        *(f"container {one.name} ({one.state})" for one in _ended(deployment, subject)),
        *(str(path) for path in half_written(deployment)),
    ]
    if found:
        fix = "save the log with `dflash-deploy logs`, then run `dflash-deploy down`; remove the files by hand"
        yield Check("leftovers", "warning", f"an earlier run left {', '.join(found)}", fix)
    else:
        yield Check("leftovers", "ok", "no container, lock or incomplete file of an earlier run")


def findings(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """The findings of the plan's rules. `up` refuses a plan with errors."""
    status: dict[str, Status] = {"error": "no", "warning": "warning"}
    objections = [finding for finding in plan.findings if finding.severity in status]
    for finding in objections:
        why = f": {finding.why}" if finding.why else ""
        yield Check(f"plan: {finding.id}", status[finding.severity], f"{finding.message}{why}", finding.fix)
    if not objections:
        yield Check("plan", "ok", f"{plan.pair.name} on profile {plan.profile.name}: no rule reports a problem")


def half_written(deployment: Deployment) -> Iterator[Path]:
    """Temporary files and directories of interrupted writes."""
    for directory in (deployment.directory, deployment.state):
        if directory.is_dir():
            yield from sorted(path for path in directory.iterdir() if _HALF_WRITTEN.fullmatch(path.name))


def is_locked(file: Path) -> bool:
    """Whether a process locks a file. It reads /proc/locks: taking the lock could make another command fail."""
    try:
        inode = file.stat().st_ino
        return re.search(rf":{inode} ", _LOCKS.read_text(encoding="ascii")) is not None
    except OSError:
        return False


def _holder(deployment: Deployment) -> str | None:
    """The text of the lock file; `None` if it is empty (the last command finished) or missing (no command ran yet)."""
    try:
        return read_text(deployment.state / "lock", limit=LONGEST_HOLDER, lossy=True).strip() or None
    except FileRefused:
        return None


def _ended(deployment: Deployment, subject: DoctorContext) -> list[Container]:
    if subject.facts.container_engine is None:
        return []
    at_rest = {"exited", "restarting", "dead", "created"}
    return [one for one in project_containers(deployment.project_name) if one.state in at_rest]

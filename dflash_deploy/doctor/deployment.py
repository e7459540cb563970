"""The deployment directory: who can read `.env`, what an earlier run left, and what the plan objects to."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.doctor.check import Check, Status
from dflash_deploy.doctor.subject import Subject
from dflash_deploy.host.containers import Container, project_containers
from dflash_deploy.plan import Plan

_HALF_WRITTEN = re.compile(r"\..+\.[0-9a-f]{8}|.+\.tmp|build\.\d+")
"""Names of files before they are renamed into place, and of a build context before it is swapped."""

_LOCKS = Path("/proc/locks")


def env_file(subject: Subject) -> Iterator[Check]:
    """Whether `.env`, which holds the key, belongs to this user and is read by nobody else."""
    deployment = subject.deployment
    if deployment is None:
        return
    status = deployment.env_file.stat()
    mode, user = stat.S_IMODE(status.st_mode), os.geteuid()
    saw = f"{deployment.env_file} has mode {mode:04o} and belongs to user {status.st_uid}"
    if mode & 0o077:
        yield Check(".env", "no", f"{saw}: others can read the key", f"chmod 600 {deployment.env_file}")
    elif user not in {0, status.st_uid}:
        yield Check(".env", "no", f"{saw}; this is user {user}", f"run dflash-deploy as user {status.st_uid}")
    elif not deployment.key_is_sound:
        fix = "make one: dflash-deploy keys rotate"
        yield Check(".env", "no", "a key is empty, too short, or has characters that files quote", fix)
    elif mode != PRIVATE:
        yield Check(".env", "warning", f"{saw}; dflash-deploy writes it with 0600", f"chmod 600 {deployment.env_file}")
    else:
        yield Check(".env", "ok", saw)


def leftovers(subject: Subject) -> Iterator[Check]:
    """What an earlier run left: containers that ended, half-written files, a command that never finished."""
    deployment = subject.deployment
    if deployment is None:
        return
    busy = _holder(deployment)
    if busy is not None and is_locked(deployment.state / "lock"):
        yield Check("leftovers", "warning", f"another command is at work here: {busy}", "wait for it; then ask again")
        return
    found = [
        *([f"a command that never finished ({busy})"] if busy else []),
        *(f"container {one.name} ({one.state})" for one in _ended(deployment, subject)),
        *(str(path) for path in half_written(deployment)),
    ]
    if found:
        fix = "`dflash-deploy logs` while it can still be read, then `dflash-deploy down`; remove the files by hand"
        yield Check("leftovers", "warning", f"an earlier run left {', '.join(found)}", fix)
    else:
        yield Check("leftovers", "ok", "no container, lock or half-written file of an earlier run")


def findings(subject: Subject, plan: Plan) -> Iterator[Check]:
    """What the rules of the plan object to. An error keeps `up` from starting."""
    status: dict[str, Status] = {"error": "no", "warning": "warning"}
    objections = [finding for finding in plan.findings if finding.severity in status]
    for finding in objections:
        why = f": {finding.why}" if finding.why else ""
        yield Check(f"plan: {finding.id}", status[finding.severity], f"{finding.message}{why}", finding.fix)
    if not objections:
        yield Check("plan", "ok", f"pair {plan.pair.name} on profile {plan.profile.name}, and no rule objects")


def half_written(deployment: Deployment) -> Iterator[Path]:
    """Files and directories that an interrupted write left beside their final names."""
    for directory in (deployment.directory, deployment.state):
        if directory.is_dir():
            yield from sorted(path for path in directory.iterdir() if _HALF_WRITTEN.fullmatch(path.name))


def is_locked(file: Path) -> bool:
    """Whether a process holds a lock on a file. To try the lock would refuse whoever asks for it at that moment."""
    try:
        inode = file.stat().st_ino
        return re.search(rf":{inode} ", _LOCKS.read_text(encoding="ascii")) is not None
    except OSError:
        return False


def _holder(deployment: Deployment) -> str | None:
    """What the lock file says; it is empty after a command that came to its end, and absent before the first."""
    try:
        return (deployment.state / "lock").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _ended(deployment: Deployment, subject: Subject) -> list[Container]:
    if subject.facts.container_engine is None:
        return []
    at_rest = {"exited", "restarting", "dead", "created"}
    return [one for one in project_containers(deployment.project_name) if one.state in at_rest]

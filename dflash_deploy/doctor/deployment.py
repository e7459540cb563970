"""The deployment directory and the disk: the mode of `.env`, leftovers, the plan's findings, space, and the weights."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.deployment.lock import LONGEST_HOLDER
from dflash_deploy.doctor.check import Check, DoctorContext, Status, gib
from dflash_deploy.errors import FileRefused, SettingsRefused
from dflash_deploy.host.ask import Container, has_image, project_containers
from dflash_deploy.host.machine import DiskRoom, bytes_under, disk_room
from dflash_deploy.intake.files import read_text
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.engines import ENGINES

# Names of temporary files before they are renamed, and of a build context before it is swapped.
_HALF_WRITTEN = re.compile(r"\..+\.[0-9a-f]{8}|.+\.tmp|build\.\d+")

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


GPU_IMAGE = 25 * GIB
CPU_IMAGE = 5 * GIB
# Bytes of an engine's image with CUDA, of one without, and of this project's layers: estimates in full GiB.
OUR_LAYERS = GIB

CACHE = 3 * GIB  # bytes of compiled kernels and graphs after the first start: an estimate


@dataclass(frozen=True)
class Need:
    """Files that must still be written: what they are, their size in bytes, and their directory."""

    what: str
    size: int
    directory: Path


def disk(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether each file system has enough free space for everything that will be written to it."""
    together: dict[int, tuple[DiskRoom, list[Need]]] = {}
    missing = (model for model in subject.weights if not model.there)
    needs = [
        Need(f"of the {one.role}", max(one.size - bytes_under(one.directory), 0), one.directory) for one in missing
    ]
    for need in (*needs, *_engine_needs(subject, plan)):
        room = disk_room(need.directory)
        if room is None:
            yield Check(
                "disk",
                "warning",
                f"this user has no permission to read {need.directory}",
                "run `dflash-deploy doctor` as its owner",
            )
        else:
            together.setdefault(room.device, (room, []))[1].append(need)
    for room, needs in together.values():
        yield judge_room(room, needs)
    engine = subject.facts.container_engine
    unknown = plan.runtime == "compose" and (engine is None or not engine.root)
    if not together and not unknown:
        yield Check("disk", "ok", "weights, image and caches are already on disk")
    if unknown:
        image = gib((CPU_IMAGE if plan.engine.cpu else GPU_IMAGE) + OUR_LAYERS)
        saw = f"the image (about {image}) is not counted: Docker does not respond"
        yield Check("disk", "skipped", saw, "start Docker, then run `dflash-deploy doctor` again")


def judge_room(room: DiskRoom, needs: list[Need]) -> Check:
    """Whether one file system has enough free space for `needs`."""
    total = sum(need.size for need in needs)
    parts = ", ".join(f"{gib(need.size)} {need.what} in {need.directory}" for need in needs)
    saw = f"{gib(room.free)} free at {room.directory}, {gib(total)} needed: {parts}"
    if room.free >= total:
        return Check("disk", "ok", saw)
    advice = "`docker system prune` removes unused images; .env can name other directories for the weights"
    return Check("disk", "no", saw, f"free {gib(total - room.free)} there: {advice}")


def weights(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether the weights are complete and the engine's user may read them."""
    for model in subject.weights:
        name = f"weights of {model.role}"
        if not model.there:
            size = f"; {gib(model.size)} to download" if model.repo else ""
            # `up` downloads them
            yield Check(name, "warning" if model.repo else "no", f"{model.lack}{size}", model.remedy)
            continue
        user, group = _engine_user(subject, plan)
        mighty = plan.runtime == "native" and user == 0
        if not mighty and (unreadable := first_unreadable(model.directory, user, group)):
            saw = f"{unreadable} is not readable for user {user}, the user of the engine"
            yield Check(name, "no", saw, f"chmod -R a+rX {model.directory}")
        else:
            yield Check(name, "ok", f"complete and readable for user {user} in {model.directory}")


def first_unreadable(directory: Path, user: int, group: int) -> Path | None:
    """The first file or directory that this user may not read, from owner, group and mode.

    This includes root: compose/base.yaml drops the capability that lets root read every file.
    """
    if directory.is_file():
        return None if _may(directory, user, group, stat.S_IROTH) else directory
    for root, _, names in os.walk(directory):
        here = Path(root)
        if not _may(here, user, group, stat.S_IROTH | stat.S_IXOTH):
            return here
        for name in sorted(names):
            if not _may(here / name, user, group, stat.S_IROTH):
                return here / name
    return None


def _may(path: Path, user: int, group: int, wanted: int) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    shift = 6 if status.st_uid == user else 3 if status.st_gid == group else 0
    return status.st_mode >> shift & wanted == wanted


def _engine_user(subject: DoctorContext, plan: Plan) -> tuple[int, int]:
    """The user and group of the engine: in a container the owner of `.env`, else the current user."""
    if plan.runtime == "compose" and subject.deployment is not None:
        status = subject.deployment.env_file.stat()
        return status.st_uid, status.st_gid
    return os.geteuid(), os.getegid()


def _engine_needs(subject: DoctorContext, plan: Plan) -> Iterator[Need]:
    engine = subject.facts.container_engine
    if subject.engine_state.alive:
        return
    compiled = ENGINES[plan.engine.engine].compiled
    if plan.runtime == "native":
        if compiled:
            yield Need("for caches", CACHE, Path(compiled).expanduser())
    elif engine is not None and engine.local and engine.root:
        root = Path(engine.root)
        if compiled:
            yield Need("for caches", CACHE, root)
        if not has_image(plan.settings.dflash_image):
            based = has_image(plan.settings.dflash_base_image)
            base = 0 if based else CPU_IMAGE if plan.engine.cpu else GPU_IMAGE
            yield Need("for the image", base + OUR_LAYERS, root)

"""Free space for everything that must still be written, and the permissions of the weights."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.doctor.check import Check, DoctorContext, LocalWeights, gib
from dflash_deploy.host.ask import has_image
from dflash_deploy.host.machine import DiskRoom, bytes_under, disk_room
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.engines import ENGINES

GPU_IMAGE = 25 * GIB
CPU_IMAGE = 5 * GIB
OUR_LAYERS = GIB
"""Bytes of an engine's image with CUDA, of one without, and of this project's layers: estimates in full GiB."""

CACHE = 3 * GIB
"""Bytes of compiled kernels and graphs after the first start: an estimate."""


@dataclass(frozen=True)
class Need:
    """Files that must still be written: what they are, their size in bytes, and their directory."""

    what: str
    size: int
    directory: Path


def disk(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether each file system has enough free space for everything that will be written to it."""
    together: dict[int, tuple[DiskRoom, list[Need]]] = {}
    for need in (*_weights_needs(subject), *_engine_needs(subject, plan)):
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


def _weights_needs(subject: DoctorContext) -> Iterator[Need]:
    for model in subject.weights:
        if not model.there:
            yield Need(f"of the {model.role}", _rest(model), model.directory)


def _rest(model: LocalWeights) -> int:
    """Bytes that must still be downloaded; 0 if the directory is larger than the model."""
    return max(model.size - bytes_under(model.directory), 0)


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

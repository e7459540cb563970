"""Directories for the containers, and the names and ports of the services in `compose.yaml`.

The container reads its files as the owner of `.env`, in a private directory of `.dflash/`. If the deployment belongs to
another user, root writes into directories that this user can replace by links at any moment. So each directory is
opened first, and everything happens inside of what was opened.

`.dflash/keys/` has the digests of further keys, `.dflash/door/data/` the certificates that the door's container writes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_if_changed
from dflash_deploy.errors import BadInput

_OPEN = os.O_RDONLY | os.O_DIRECTORY


def write_owned(deployment: Deployment, file: Path, text: str) -> bool:
    """Write a file of `.dflash/` in a directory of its own; return whether it changed.

    Both belong to the owner of `.env`, as whom a container runs, also if that owner has changed.
    Raises BadInput if the directory is a link, or `.dflash/` that of another user.
    """
    with _opened(deployment, file.parent) as directory:
        # names in the open directory, wherever it was moved to
        inside = Path(f"/proc/self/fd/{directory}") / file.name
        if inside.is_symlink():
            inside.unlink()
        try:
            changed = write_if_changed(inside, text, mode=PRIVATE)
        except OSError as problem:
            problem.filename, problem.filename2 = str(file), None
            raise
        with suppress(FileNotFoundError):
            written = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
            try:
                give_descriptor(deployment.env_file, written)
            finally:
                os.close(written)
    return changed


def make_owned(deployment: Deployment, directory: Path) -> None:
    """Make a private directory of `.dflash/` that belongs to the owner of `.env`. Raises BadInput if it is a link."""
    with _opened(deployment, directory):
        pass


def give_descriptor(env_file: Path, descriptor: int) -> None:
    """Give an open file to the owner of `.env` if root runs, so that the owner can read it without root.

    A file with a second name is left: it may be one that only root may give away.
    """
    if os.geteuid() == 0 and env_file.exists():
        owner, now = env_file.stat(), os.fstat(descriptor)
        if now.st_uid != owner.st_uid and (now.st_nlink == 1 or stat.S_ISDIR(now.st_mode)):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


@contextmanager
def _opened(deployment: Deployment, directory: Path) -> Iterator[int]:
    """Open a directory of `.dflash/` without following a link; directories that are missing are made."""
    descriptor = _state(deployment.make_state())
    try:
        for name in directory.relative_to(deployment.state).parts:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=descriptor)
            inner = _inner(name, descriptor, directory)
            os.close(descriptor)
            descriptor = inner
            give_descriptor(deployment.env_file, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _state(state: Path) -> int:
    """Open `.dflash/`. Raises BadInput if it is a link that another user made, and can change at any moment."""
    here = os.open(state, os.O_PATH | os.O_NOFOLLOW)
    try:
        found = os.fstat(here)
        if not stat.S_ISLNK(found.st_mode):
            return os.open(state, _OPEN | os.O_NOFOLLOW)
        if found.st_uid not in {os.geteuid(), 0}:
            raise BadInput(
                f"{state} is a link that user {found.st_uid} made",
                hint="remove it, or make it again as the user who runs this command",
            )
        # the link that was checked, also if its name leads elsewhere now
        return os.open(state.parent / os.readlink("", dir_fd=here), _OPEN)
    finally:
        os.close(here)


def _inner(name: str, parent: int, directory: Path) -> int:
    try:
        return os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=parent)
    except OSError:
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            # root would write where the link leads, and give it away
            raise BadInput(f"{directory} is a link", hint="remove it: this directory holds files with keys") from None
        raise


SERVICE, DOOR = "engine", "door"  # the services of the engine and of the door
INNER_PORT = 8000  # the port of engine and door in their containers; the files of compose/ set it

# The root certificate of Caddy's own authority, in the directory of the door's certificates.
ROOT = Path("caddy/pki/authorities/local/root.crt")


def storage_of(deployment: Deployment) -> Path:
    """The directory of the door's certificates and keys."""
    return deployment.state / DOOR / "data"

"""Files that a container reads as the owner of `.env`, each in a private directory of `.dflash/`."""

from __future__ import annotations

import os
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_if_changed
from dflash_deploy.errors import BadInput


def write_owned(deployment: Deployment, file: Path, text: str) -> bool:
    """Write a file of `.dflash/` in a directory of its own; return whether it changed.

    Both belong to the owner of `.env`, as whom a container runs, also if that owner has changed.
    Raises BadInput if the directory is a link.
    """
    make_owned(deployment, file.parent)
    changed = write_if_changed(file, text, mode=PRIVATE)
    _give(deployment, file)
    return changed


def make_owned(deployment: Deployment, directory: Path) -> None:
    """Make a private directory of `.dflash/` that belongs to the owner of `.env`. Raises BadInput if it is a link."""
    deployment.make_state()
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.is_symlink():
        # root would write where the link leads, and give it away
        raise BadInput(f"{directory} is a link", hint="remove it: this directory holds files with keys")
    _give(deployment, directory)


def give_descriptor(env_file: Path, descriptor: int) -> None:
    """Give an open file to the owner of `.env` if root runs, so that the owner can read it without root.

    A file with a second name is left: it may be one that only root may give away.
    """
    if os.geteuid() == 0 and env_file.exists():
        owner, now = env_file.stat(), os.fstat(descriptor)
        if now.st_uid != owner.st_uid and now.st_nlink == 1:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _give(deployment: Deployment, path: Path) -> None:
    if os.geteuid() == 0 and deployment.env_file.exists():
        owner = deployment.env_file.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)

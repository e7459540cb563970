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
    deployment.make_state()
    file.parent.mkdir(mode=0o700, exist_ok=True)
    if file.parent.is_symlink():
        # root would write where the link leads, and give it away
        raise BadInput(f"{file.parent} is a link", hint="remove it: this directory holds files with keys")
    changed = write_if_changed(file, text, mode=PRIVATE)
    if os.geteuid() == 0 and deployment.env_file.exists():
        owner = deployment.env_file.stat()
        for path in (file.parent, file):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    return changed

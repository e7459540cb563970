"""A tar.gz that only its owner can read."""

from __future__ import annotations

import glob
import io
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from dflash_deploy.deployment.files import PRIVATE, new_file, remove_leftovers
from dflash_deploy.deployment.outputs import check_output, not_written
from dflash_deploy.errors import BadInput


def write_archive(path: Path, members: Mapping[str, str], *, names: str = "") -> None:
    """Write a tar.gz with one folder of texts, created with mode 0600. A failure leaves no file, and a kill neither.

    What a killed writer of `path` left is removed first; also of a file whose name matches the glob pattern `names`.
    Raises BadInput if the file exists or cannot be written, PreflightRefused if the disk is full.
    """
    # an existing file is refused below, whatever it is
    if not os.path.lexists(path):
        check_output(path)
    remove_leftovers(path.parent, glob.escape(path.name), *filter(None, [names]))
    try:
        if os.path.lexists(path):
            raise FileExistsError
        with new_file(path, mode=PRIVATE) as file:
            _fill(file, path.name.removesuffix(".gz").removesuffix(".tar"), members)
    except FileExistsError:
        raise BadInput(f"{path} already exists", hint="choose another file name") from None
    except OSError as problem:
        raise not_written(path, problem) from None


def _fill(file: BinaryIO, folder: str, members: Mapping[str, str]) -> None:
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in members.items():
            content = text.encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(content), PRIVATE, int(time.time())
            archive.addfile(member, io.BytesIO(content))

"""A tar.gz that only its owner can read."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.deployment.outputs import check_output, not_written
from dflash_deploy.errors import BadInput


def write_archive(path: Path, members: Mapping[str, str]) -> None:
    """Write a tar.gz with one folder of texts, created with mode 0600. A failure leaves no file.

    Raises BadInput if the file exists or cannot be written, PreflightRefused if the disk is full.
    """
    # an existing file is refused below, whatever it is
    if not os.path.lexists(path):
        check_output(path)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    except FileExistsError:
        raise BadInput(f"{path} already exists", hint="choose another file name") from None
    except OSError as problem:
        raise not_written(path, problem) from None
    try:
        _fill(descriptor, path.name.removesuffix(".gz").removesuffix(".tar"), members)
    except BaseException as problem:
        with suppress(OSError):
            path.unlink()
        if isinstance(problem, OSError):
            raise not_written(path, problem) from None
        raise


def _fill(descriptor: int, folder: str, members: Mapping[str, str]) -> None:
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in members.items():
            content = text.encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(content), PRIVATE, int(time.time())
            archive.addfile(member, io.BytesIO(content))
        archive.close()
        file.flush()
        os.fsync(descriptor)

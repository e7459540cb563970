"""The build context in `.dflash/build/`: the files that the Dockerfiles of a deployment's images copy."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from dflash_deploy.assets import build_context

NAME = "build"
"""The directory's name in `.dflash/`. `build.PID` is one that is not complete yet, or not needed any more."""


def stage_build_context(state: Path, images: Iterable[str]) -> None:
    """Create the build context of these images in `state`, with the paths of the repository, unless it is there.

    It is made in a temporary directory and renamed, so that a command that is killed leaves it complete or absent.
    """
    remove_unused_contexts(state)
    context, files = state / NAME, {name: path for image in images for name, path in build_context(image).items()}
    if _is_complete(context, files):
        return
    staged, old = state / f"{NAME}.{os.getpid()}", state / f"{NAME}.{os.getpid()}.old"
    try:
        for name, source in files.items():
            place = staged / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
        with suppress(FileNotFoundError):
            context.rename(old)
        staged.rename(context)
    finally:
        remove_unused_contexts(state)


def remove_unused_contexts(state: Path) -> None:
    """Remove what commands that were killed left of a build context. The deployment's lock must be held."""
    for left in state.glob(f"{NAME}.*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            with suppress(OSError):
                left.unlink()


def _is_complete(context: Path, files: Mapping[str, Path]) -> bool:
    """Return whether a directory contains exactly these files; a power cut may have emptied some."""
    there = {str(path.relative_to(context)) for path in context.rglob("*") if not path.is_dir()}
    if there != set(files) or context.is_symlink():
        return False
    try:
        return all(filecmp.cmp(source, context / name, shallow=False) for name, source in files.items())
    except OSError:
        return False

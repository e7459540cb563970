"""A cheap look at a model directory, so that a missing file is named here and not minutes later in the engine's log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from dflash_deploy.errors import WeightsMissing
from dflash_deploy.weights.gguf import MAGIC

INDEX = "model.safetensors.index.json"
POINTER = b"version https://git-lfs"
"""What a file starts with that was cloned without Git LFS: a note of a few lines instead of the weights."""


def check_weights(
    directory: Path, *, role: str, setting: str, mounted: bool = False, file: str = "", fetch: str = ""
) -> None:
    """Look for config.json and for every weight file, or for the one GGUF that `file` names.

    `role` (target or drafter) and `setting` (its name in `.env`) go into the message, `fetch`, the command that brings
    it, into the hint. `mounted` says that a container will see this directory and nothing beside it.
    Raises WeightsMissing.
    """
    fetch = fetch or f"hf download REPOSITORY --local-dir {directory}"
    if not directory.is_dir():
        raise WeightsMissing(
            f"the {role}'s directory {directory} does not exist",
            hint=f"`dflash-deploy pull` (or `{fetch}`) brings it, or set {setting} in .env",
        )
    for problem in _gguf_problems(directory, file, mounted=mounted) if file else _problems(directory, mounted=mounted):
        raise WeightsMissing(
            f"the {role} in {directory} is not whole: {problem}",
            hint=f"`dflash-deploy pull` (or `{fetch}`) brings what is missing, as real files",
        )


def _problems(directory: Path, *, mounted: bool) -> Iterator[str]:
    if not (directory / "config.json").is_file():
        yield "config.json is missing"
    try:
        names = _weight_files(directory)
    except (ValueError, KeyError, AttributeError):
        yield f"{INDEX} is damaged"
        return
    if not names:
        yield "there is no *.safetensors file"
    for name in names:
        yield from _file_problems(directory, name, mounted=mounted)


def _gguf_problems(directory: Path, name: str, *, mounted: bool) -> Iterator[str]:
    problems = list(_file_problems(directory, name, mounted=mounted))
    if not problems and not _starts_with(directory / name, MAGIC):
        problems = [f"{name} does not start with GGUF"]
    yield from problems


def _file_problems(directory: Path, name: str, *, mounted: bool) -> Iterator[str]:
    file = directory / name
    if not file.exists():
        yield f"{name} is missing" + (" (a link that leads nowhere)" if file.is_symlink() else "")
    elif file.stat().st_size == 0:
        yield f"{name} is empty"
    elif _starts_with(file, POINTER):
        yield f"{name} is a Git LFS pointer, not the weights"
    elif mounted and directory.resolve() not in file.resolve().parents:
        yield f"{name} is a link out of the directory, which leads nowhere in a container"


def _weight_files(directory: Path) -> list[str]:
    """The files that the index names, or those that are there where the weights are one file without an index."""
    index = directory / INDEX
    if index.is_file():
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    return sorted(file.name for file in directory.glob("*.safetensors"))


def _starts_with(file: Path, start: bytes) -> bool:
    with file.open("rb") as content:
        return content.read(len(start)) == start

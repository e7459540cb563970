"""A cheap look at a model directory, so that a missing file is named here and not minutes later in the engine's log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dflash_deploy.errors import WeightsMissing
from dflash_deploy.weights.gguf import MAGIC

INDEX = "model.safetensors.index.json"
POINTER = b"version https://git-lfs"
"""What a file starts with that was cloned without Git LFS: a note of a few lines instead of the weights."""

MOST_HEADER = 100 * 2**20
"""The longest header that the safetensors library reads."""


def check_weights(
    directory: Path, *, role: str, setting: str, mounted: bool = False, file: str = "", fetch: str = ""
) -> None:
    """Look for config.json and for every weight file, or for the one GGUF that `file` names.

    `role` (target or drafter) and `setting` (its name in `.env`) go into the message, `fetch`, the command that brings
    it, into the hint. `mounted` says that a container will see this directory and nothing beside it.
    Raises WeightsMissing.
    """
    fetch = fetch or f"hf download REPOSITORY --local-dir {directory}"
    try:
        if not directory.is_dir():
            raise WeightsMissing(
                f"the {role}'s directory {directory} does not exist",
                hint=f"`dflash-deploy pull` (or `{fetch}`) brings it, or set {setting} in .env",
            )
        looked = _gguf_problems(directory, file, mounted=mounted) if file else _problems(directory, mounted=mounted)
        problem = next(looked, None)
    except PermissionError as denied:
        raise WeightsMissing(
            f"the {role} cannot be read by this user: {denied.filename}", hint=f"chmod -R a+rX {directory}"
        ) from None
    except OSError as problem:
        raise WeightsMissing(
            f"the {role} cannot be read: {problem.filename or directory}: {problem.strerror}",
            hint="see to the disk or the network share that it lies on (`dmesg | tail`)",
        ) from None
    if problem is not None:
        raise WeightsMissing(
            f"the {role} in {directory} is not whole: {problem}",
            hint=f"`dflash-deploy pull` (or `{fetch}`) brings what is missing, as real files",
        )


def _problems(directory: Path, *, mounted: bool) -> Iterator[str]:
    config = directory / "config.json"
    if not config.is_file():
        yield "config.json is missing"
    elif not _is_json(config):
        yield "config.json is damaged"
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
    elif problem := content_problem(file):
        yield f"{name} {problem}"
    elif mounted and directory.resolve() not in file.resolve().parents:
        yield f"{name} is a link out of the directory, which leads nowhere in a container"


def content_problem(file: Path) -> str:
    """What the first bytes of a file say against it, in words that follow its name; empty where they say nothing."""
    return _foreign(file) or (_safetensors_problem(file) if file.suffix == ".safetensors" else "")


def _foreign(path: Path) -> str:
    """Something that was saved in the place of the file."""
    with path.open("rb") as content:
        start = content.read(256)
    if start.startswith(POINTER):
        return "is a Git LFS pointer, not the weights"
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")) and path.suffix != ".html":
        return "is a web page that was saved in its place"
    return ""


def tensor_names(directory: Path) -> set[str]:
    """The tensors of a directory, as its index or the headers of its safetensors files name them.

    Raises OSError, EOFError, ValueError, KeyError or TypeError where these cannot be read.
    """
    index = directory / INDEX
    if index.is_file():
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    headers = (_header(file)[1] for file in directory.glob("*.safetensors"))
    return {name for header in headers for name in header if name != "__metadata__"}


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """How many bytes a safetensors file's header has, and the header. Raises EOFError where the file cannot hold it."""
    with path.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        if length > min(path.stat().st_size, MOST_HEADER):
            raise EOFError(path.name)
        return length, json.loads(content.read(length))


def _safetensors_problem(path: Path) -> str:
    """A safetensors file says at its start how long it must be."""
    size = path.stat().st_size
    try:
        length, header = _header(path)
        ends = [int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"]
    except EOFError:
        return "is no safetensors file, or cut off in its header"
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError):
        return "has a damaged header"
    needed = 8 + length + max(ends, default=0)
    return f"is cut off: its header asks for {needed} bytes, and there are {size}" if size < needed else ""


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return False
    return True


def _weight_files(directory: Path) -> list[str]:
    """The files that the index names, or those that are there where the weights are one file without an index."""
    index = directory / INDEX
    if index.is_file():
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    return sorted(file.name for file in directory.glob("*.safetensors"))


def _starts_with(file: Path, start: bytes) -> bool:
    with file.open("rb") as content:
        return content.read(len(start)) == start
